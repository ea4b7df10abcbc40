#include "runtime/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/env.h"
#include "base/error.h"
#include "runtime/files.h"

namespace jf::runtime {

Finished run(const std::vector<std::string>& command, const std::string& folder) {
  // The shell changes the folder: posix_spawn learned to do so only in glibc 2.29.
  std::vector<std::string> words = {"/bin/sh", "-c", "cd \"$0\" && exec \"$@\"", folder};
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const env::Copy environment = env::copy();
  std::vector<char*> variables;
  for (const std::string& line : *environment) variables.push_back(const_cast<char*>(line.c_str()));
  variables.push_back(nullptr);

  const std::string log = folder + "/log.txt";
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);

  // A thread of the host program may block signals, and Python ignores SIGPIPE; a compiler expects neither.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &files, &attributes, argv.data(), variables.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  JF_REQUIRE(error == 0, "[compile] cannot start ", command.front(), ": ", std::strerror(error));

  int status = 0;
  pid_t waited;
  do {
    waited = waitpid(child, &status, 0);
  } while (waited < 0 && errno == EINTR);

  Finished finished;
  finished.output = read_file(log).value_or("");
  // A host program that ignores SIGCHLD takes the status away; then only the output files tell how it went.
  if (waited == child) finished.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return finished;
}

}  // namespace jf::runtime

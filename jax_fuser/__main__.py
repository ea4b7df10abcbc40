"""`python -m jax_fuser doctor`: say what this machine has and what jax_fuser would use."""

import sys

from ._doctor import doctor

if __name__ == "__main__":
    if sys.argv[1:] != ["doctor"]:
        sys.exit("usage: python -m jax_fuser doctor")
    print(doctor())

// Lanes that go round (loops::Cycle) on the CPU: what a row has for each of its places, or what there is for each row,
// is loaded once and brought to its lanes in registers.
#pragma once

#include "codegen/cpu_memory.h"

namespace jf {

// Places and turns of lanes that go round, from any start below the period.
template <class N, int kPeriod>
struct Rounds {
  N place[kPeriod + JF_PART], turn[kPeriod + JF_PART];
  constexpr Rounds() : place{}, turn{} {
    for (int i = 0; i < kPeriod + JF_PART; ++i) place[i] = N(i % kPeriod), turn[i] = N(i / kPeriod);
  }
};
// Of this kernel alone: where inline, one for all that the process has loaded, whatever their JF_PART.
template <class N, int kPeriod>
static constexpr Rounds<N, kPeriod> kRounds{};
// Lane l gets lane from[l].
template <class T>
JF_FUNCTION Part<T> lanes_from(const Part<T>& x, const LaneNumber<T>* from) {
  Part<LaneNumber<T>> lanes;
  __builtin_memcpy(&lanes, from, sizeof(lanes));
#if defined(__clang__)
  Part<T> result{};
  for (int i = 0; i < JF_PART; ++i) result[i] = x[lanes[i]];
  return result;
#else
  return __builtin_shuffle(x, lanes);
#endif
}
template <int kPeriod, class M, int... i>
JF_FUNCTION Part<Stored<M>> read_round(const M* p, long place_step, long turn_step, int start, int count,
                                       Numbers<i...>) {
  constexpr const Rounds<s32, kPeriod>& rounds = kRounds<s32, kPeriod>;
  return Part<Stored<M>>{(i < count
                              ? read_one(p + rounds.place[start + i] * place_step + rounds.turn[start + i] * turn_step)
                              : Stored<M>(0))...};
}
// Turns that follow each other, these or their places backwards: of two vectors, with the first element that is wanted
// and with the last one.
template <class T, int kPeriod, bool kPlaces>
struct Backwards {
  LaneNumber<T> lanes[kPeriod][JF_PART];
  int first[kPeriod], last[kPeriod];  // elements that are wanted, from place 0 of the first turn on
  constexpr Backwards() : lanes{}, first{}, last{} {
    for (int start = 0; start < kPeriod; ++start) {
      int at[JF_PART] = {};
      for (int l = 0; l < JF_PART; ++l) {
        const int place = (start + l) % kPeriod, turn = (start + l) / kPeriod;
        at[l] = kPlaces ? turn * kPeriod - place : place - turn * kPeriod;
        if (l == 0 || at[l] < first[start]) first[start] = at[l];
        if (l == 0 || at[l] > last[start]) last[start] = at[l];
      }
      for (int l = 0; l < JF_PART; ++l) {
        const int from_first = at[l] - first[start], from_last = at[l] - (last[start] - JF_PART + 1);
        lanes[start][l] = LaneNumber<T>(from_first < JF_PART ? from_first : JF_PART + from_last);
      }
    }
  }
};
template <class T, int kPeriod, bool kPlaces>
static constexpr Backwards<T, kPeriod, kPlaces> kBackwards{};
template <class T>
JF_FUNCTION Part<T> lanes_from(const Part<T>& x, const Part<T>& y, const LaneNumber<T>* from) {
  Part<LaneNumber<T>> lanes;
  __builtin_memcpy(&lanes, from, sizeof(lanes));
#if defined(__clang__)
  Part<T> result{};
  for (int i = 0; i < JF_PART; ++i) result[i] = lanes[i] < JF_PART ? x[lanes[i]] : y[lanes[i] - JF_PART];
  return result;
#else
  return __builtin_shuffle(x, y, lanes);
#endif
}
// From place 0 of the first turn on.
template <int kPeriod, long kPlaceStep, long kTurnStep, class T, int W, class M, class On>
JF_FUNCTION Lanes<T, W> load_round(Type<Lanes<T, W>>, const M* p, int start, On on) {
  constexpr const auto& rounds = kRounds<LaneNumber<T>, kPeriod>;
  if constexpr (W > JF_PART) {
    constexpr int kHalf = W / 2;
    const int next = start + kHalf;
    return {load_round<kPeriod, kPlaceStep, kTurnStep>(Type<Lanes<T, kHalf>>{}, p, start, on),
            load_round<kPeriod, kPlaceStep, kTurnStep>(Type<Lanes<T, kHalf>>{}, p + next / kPeriod * kTurnStep,
                                                       next % kPeriod, rest(on, kHalf))};
  } else if constexpr (kPlaceStep == 1 && kTurnStep == 0 && kPeriod <= JF_PART) {
    return {lanes_from<T>(decode(M{}, read<JF_PART>(p, One{}, First{kPeriod})), rounds.place + start)};
  } else if constexpr (kPlaceStep == 0 && kTurnStep == 1) {
    const int turns = (start + active<W>(on) - 1) / kPeriod + 1;
    return {lanes_from<T>(decode(M{}, read<JF_PART>(p, One{}, First{turns})), rounds.turn + start)};
  } else if constexpr (kPlaceStep * kTurnStep == -kPeriod && 2 * kPeriod - 2 <= JF_PART && W == JF_PART &&
                       is_same<On, All>) {
    using N = Stored<M>;
    constexpr const auto& backwards = kBackwards<N, kPeriod, kPlaceStep == -1>;
    const M* const first = p + backwards.first[start];
    const M* const second = p + backwards.last[start] - (JF_PART - 1);
    const Part<N> a = read<W>(first, One{}, on), b = read<W>(second, One{}, on);
    return {decode(M{}, lanes_from<N>(a, b, backwards.lanes[start]))};
  } else {
    return {decode(
        M{}, read_round<kPeriod>(p, kPlaceStep, kTurnStep, start, active<W>(on), typename NumbersBelow<W>::Type{}))};
  }
}
template <class L, int kPeriod, long kPlaceStep, long kTurnStep, class M, class On = All>
JF_FUNCTION L load_cycle(const M* p, long offset, int start, On on = {}) {
  return load_round<kPeriod, kPlaceStep, kTurnStep>(Type<L>{}, p + offset - start * kPlaceStep, start, on);
}

}  // namespace jf

// Sums within a warp on the way to memory: the lanes that add to the same place add up first, and one of them adds the
// total. On the CPU nothing here is called.
#pragma once

#include "core/scatter.h"

namespace diffrender {

// The lanes of a warp that add to one place, and whether this one does it for all of them.
struct LaneGroup {
  uint32_t lanes;
  bool leads;

  DR_HD static LaneGroup of(bool live, int64_t key) {
    const uint32_t lanes = warp_match(live ? static_cast<uint64_t>(key) : ~uint64_t(0));
    return {lanes, live && warp_lane() == lowest_lane(lanes)};
  }
};

// Adds the values of all lanes of a group to the elements first, first + 1, ... of the sink, which the group has in
// common. All lanes of the warp have to come here.
template <class scalar_t, int kCount>
DR_HD void add_group(const Sink<scalar_t>& sink, const LaneGroup& group, int64_t first, scalar_t (&values)[kCount]) {
  sum_in_lowest_lane(group.lanes, values);
  for (int i = 0; i < kCount; ++i) {
    if (group.leads) accumulate(sink, first + i, values[i]);
  }
}

constexpr int kChannelsAtOnce = 4;

// Adds value(c) of each live lane to the elements first + c of the sink: the channels of a pixel or of a texel. All
// lanes of the warp have to come here.
template <class scalar_t, class F>
DR_HD void add_channels_by_warp(const Sink<scalar_t>& sink, bool live, int64_t first, int32_t channels,
                                const F& value) {
  const LaneGroup group = LaneGroup::of(live, first);
  for (int32_t done = 0; done < channels; done += kChannelsAtOnce) {
    scalar_t values[kChannelsAtOnce];
    for (int i = 0; i < kChannelsAtOnce; ++i) values[i] = live && done + i < channels ? value(done + i) : scalar_t(0);
    sum_in_lowest_lane(group.lanes, values);
    for (int i = 0; i < kChannelsAtOnce; ++i) {
      if (group.leads && done + i < channels) accumulate(sink, first + done + i, values[i]);
    }
  }
}

}  // namespace diffrender

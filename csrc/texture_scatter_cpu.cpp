// Gradient of a texture on the CPU. Lookups are sorted by the square tile of texels that they touch; every tile is then
// summed in double precision, in the order of the lookups, in a buffer that fits the cache, and written once.
//
// So the sum on a texel is right to the last digits however many lookups meet there, it is the same for any number of
// threads, nothing is cleared or summed per thread, and random lookups into a large texture stay within the cache.
// A tile that very many lookups share is summed in parts, whose number depends on counts alone. A small texture is a
// single tile: its lookups are added as they come. Its smallest levels, where neighbouring lookups meet in the same few
// texels, keep the four sums of a square side by side: one addition of four numbers per lookup instead of two or four
// that wait for those of the lookup before. Squares are summed to texels in the end.
#include "texture_scatter_cpu.h"

#include <algorithm>

#include "core/lanes.h"
#include "texture_backward.h"
#include "texture_tiles_cpu.h"

namespace diffrender {
namespace {

constexpr int64_t kSquareBytes = 16 << 10;  // a level below this size in squares is kept in them
constexpr int64_t kTileBytes = 64 << 10;

// ---- what depends on the type of the numbers

template <class scalar_t>
void write_sums(void* grad, int64_t first, int64_t size, const double* sums, bool fresh) {
  scalar_t* const out = static_cast<scalar_t*>(grad) + first;
  if (sums == nullptr) {
    std::memset(out, 0, sizeof(scalar_t) * size);
  } else if (fresh) {
    for (int64_t k = 0; k < size; ++k) out[k] = static_cast<scalar_t>(sums[k]);
  } else {
    for (int64_t k = 0; k < size; ++k) out[k] = static_cast<scalar_t>(out[k] + sums[k]);
  }
}

template <class scalar_t>
const TiledLevels::Level& level_of(const TiledLevels& tiled, const TextureShares<scalar_t>& block, int i) {
  return tiled.levels[block.level_of(i)];
}

// Tile of each lookup and texel within it; -1 where it is no square, or one across tiles.
template <class scalar_t>
__attribute__((noinline)) void find_tiles(const TiledLevels& tiled, const TextureShares<scalar_t>& block,
                                          int32_t* tiles, int32_t* texels) {
  const auto& taps = block.taps;
  const int32_t shift = tiled.shift, within = (1 << shift) - 1;
  const auto find = [&](const auto& level, int i) {
    const int32_t row = taps.row[i], column = taps.column[i], y = row & within, x = column & within;
    tiles[i] = level.first_tile + (row >> shift) * level.tiles_per_row + (column >> shift);
    texels[i] = ((taps.regular[i] > 0) & (x < within) & (y < within)) ? (y << shift) + x : -1;
  };
  if (taps.one_level) {
    const auto& level = level_of(tiled, block, 0);
#pragma omp simd
    for (int i = 0; i < block.n; ++i) find(level, i);
    return;
  }
  for (int i = 0; i < block.n; ++i) find(level_of(tiled, block, i), i);
}

template <class scalar_t>
struct SingleTexels {
  int count;
  int32_t tile[4], texel[4];
  scalar_t weight[4];
};

// Every texel of a lookup by itself.
template <class scalar_t>
__attribute__((noinline)) SingleTexels<scalar_t> single_texels(const TiledLevels& tiled,
                                                               const TextureShares<scalar_t>& block, int i,
                                                               scalar_t weight) {
  const auto& level = level_of(tiled, block, i);
  const int32_t shift = tiled.shift, within = (1 << shift) - 1;
  scalar_t weights[4];
  tap_weights(block.taps, i, weight, weights);
  SingleTexels<scalar_t> result{};
  for (int k = 0; k < 4; ++k) {
    const int32_t tap = block.taps.at(k, i);
    if (tap < 0 || weights[k] == 0) continue;
    const int32_t y = tap / level.width, x = tap - y * level.width;
    result.tile[result.count] = level.first_tile + (y >> shift) * level.tiles_per_row + (x >> shift);
    result.texel[result.count] = ((y & within) << shift) + (x & within);
    result.weight[result.count++] = weights[k];
  }
  return result;
}

// ---- what depends on the channels: their count where it is 1, 3 or 4, else 0

// A square of texels, or a single one, whose weight stands in x. Few channels bring the gradient of their lookup along.
template <class scalar_t, int kChannels>
struct TexelEntry {
  int32_t texel;  // tap 0 within its tile; a single texel: -1 - texel
  scalar_t x, y;
  scalar_t values[kChannels];  // weighted
};

template <class scalar_t>
struct TexelEntry<scalar_t, 0> {
  int32_t texel;
  scalar_t x, y, weight;
  int32_t lookup;  // within its chunk
};

// low and high: rows of a square of texels.
template <int kChannels, class scalar_t>
inline __attribute__((always_inline)) void add_square(double* low, double* high, int channels, double x, double y,
                                                      double weight, const scalar_t* g) {
  const int n = kChannels > 0 ? kChannels : channels;
  const double w_low = weight * (1 - y), w_high = weight * y;
  const double w00 = w_low * (1 - x), w10 = w_low * x, w01 = w_high * (1 - x), w11 = w_high * x;
#pragma omp simd
  for (int c = 0; c < n; ++c) {
    const double value = g[c];
    low[c] += w00 * value;
    high[c] += w01 * value;
  }
#pragma omp simd
  for (int c = 0; c < n; ++c) {
    const double value = g[c];
    low[n + c] += w10 * value;
    high[n + c] += w11 * value;
  }
}

using FourSums = double __attribute__((vector_size(32), aligned(8), may_alias));

inline __attribute__((always_inline)) FourSums weights_of_square(double x, double y, double weight) {
  const double w_low = weight * (1 - y), w_high = weight * y;
  return FourSums{w_low * (1 - x), w_low * x, w_high * (1 - x), w_high * x};
}

// square: [n][4] sums.
template <int kChannels, class scalar_t>
inline __attribute__((always_inline)) void add_to_sums_of_square(double* square, int channels, double x, double y,
                                                                 double weight, const scalar_t* g) {
  const int n = kChannels > 0 ? kChannels : channels;
  const FourSums weights = weights_of_square(x, y, weight);
  for (int c = 0; c < n; ++c) {
    double* const sums = square + 4 * c;
    store_lanes(sums, load_lanes<FourSums>(sums) + weights * static_cast<double>(g[c]));
  }
}

template <class scalar_t, int kChannels>
class ChannelScatter final : public TextureScatter {
 public:
  ChannelScatter(const TiledLevels& tiled, const scalar_t* grad_values, int64_t targets, int64_t lookups,
                 const ScatterSource<scalar_t>& source)
      : TextureScatter(tiled, targets, lookups, sizeof(Entry), write_sums<scalar_t>),
        grad_values_(grad_values),
        source_(source),
        n_(kChannels > 0 ? kChannels : tiled.channels) {}

 private:
  using Entry = TexelEntry<scalar_t, kChannels>;

  const scalar_t* grad_values_;
  const ScatterSource<scalar_t>& source_;
  const int n_;

  void add_lookups(int64_t begin, int64_t end, double* sums) const override {
    source_(begin, end, [&](const TextureShares<scalar_t>& block) { add_block(block, sums); });
  }

  void add_block(const TextureShares<scalar_t>& block, double* buffer) const {
    const auto& taps = block.taps;
    const TiledLevels::Level* level = &level_of(tiled_, block, 0);
    if (taps.one_level && level->grad == nullptr) return;
    if constexpr (kChannels == 1) {
      if (taps.one_level && level->in_squares) return add_to_squares(block, buffer + level->first_sum);
    }
    const int32_t any_square = tiled_.first_tap_tells ? 0 : 1;
    const scalar_t* g = grad_values_ + block.first * n_;
    for (int i = 0; i < block.n; ++i, g += n_) {
      if (!taps.one_level) level = &level_of(tiled_, block, i);
      const scalar_t weight = block.weight_of(i);
      if (!(weight > 0) || level->grad == nullptr) continue;
      double* const sums = buffer + level->first_sum;
      const int64_t first = static_cast<int64_t>(taps.tap[0][i]) * n_;
      if (level->in_squares && taps.regular[i] >= any_square) {
        add_to_sums_of_square<kChannels>(sums + 4 * first, n_, taps.x[i], taps.y[i], weight, g);
      } else if (!level->in_squares && taps.regular[i] > 0) {
        double* const low = sums + first;
        add_square<kChannels>(low, low + static_cast<int64_t>(level->width) * n_, n_, taps.x[i], taps.y[i], weight, g);
      } else {
        add_texels(taps, i, weight, level->in_squares, g, sums);
      }
    }
  }

  // One channel. Neighbours mostly share their square: its sums stay in a register until another one comes, so that no
  // addition waits for a store.
  __attribute__((noinline)) void add_to_squares(const TextureShares<scalar_t>& block, double* sums) const {
    const auto& taps = block.taps;
    const int32_t any_square = tiled_.first_tap_tells ? 0 : 1;
    const scalar_t* const g = grad_values_ + block.first;
    FourSums held = {};
    double* square = nullptr;
    for (int i = 0; i < block.n; ++i) {
      const scalar_t weight = block.weight_of(i);
      if (!(weight > 0)) continue;
      const bool single = taps.regular[i] < any_square;
      double* const next = single ? nullptr : sums + 4 * static_cast<int64_t>(taps.tap[0][i]);
      if (next != square) {
        if (square != nullptr) store_lanes(square, held);
        if (next != nullptr) held = load_lanes<FourSums>(next);
        square = next;
      }
      if (single) {
        add_texels(taps, i, weight, true, g + i, sums);
      } else {
        held += weights_of_square(taps.x[i], taps.y[i], weight) * static_cast<double>(g[i]);
      }
    }
    if (square != nullptr) store_lanes(square, held);
  }

  __attribute__((noinline)) void add_texels(const TextureTaps<scalar_t>& taps, int i, scalar_t weight, bool in_squares,
                                            const scalar_t* g, double* sums) const {
    const int64_t stride = in_squares ? 4 : 1;  // a texel is the first of its square
    scalar_t weights[4];
    tap_weights(taps, i, weight, weights);
    for (int k = 0; k < 4; ++k) {
      const int32_t tap = taps.at(k, i);
      if (tap < 0) continue;
      double* const single = sums + static_cast<int64_t>(tap) * n_ * stride;
      const double w = weights[k];
      for (int c = 0; c < n_; ++c) single[c * stride] += w * g[c];
    }
  }

  // The gradient of a lookup goes into its entry, weighted, or the place where it stands does.
  static void fill(const scalar_t* g, int32_t lookup, scalar_t weight, Entry* entry) {
    if constexpr (kChannels > 0) {
      for (int c = 0; c < kChannels; ++c) entry->values[c] = weight * g[c];
    } else {
      entry->weight = weight;
      entry->lookup = lookup;
    }
  }

  void find_entries(const Chunk& chunk, FoundEntries* found) const override {
    source_(chunk.begin, chunk.end,
            [&](const TextureShares<scalar_t>& block) { find_entries_of(block, chunk.begin, found); });
  }

  void find_entries_of(const TextureShares<scalar_t>& block, int64_t first, FoundEntries* found) const {
    const auto& taps = block.taps;
    if (taps.one_level && level_of(tiled_, block, 0).grad == nullptr) return;
    found->reserve(4 * block.n, sizeof(Entry));
    int32_t tiles[kTextureBlock], texels[kTextureBlock];
    find_tiles(tiled_, block, tiles, texels);
    const scalar_t* g = grad_values_ + block.first * n_;
    int32_t lookup = static_cast<int32_t>(block.first - first);
    Entry* const entries = reinterpret_cast<Entry*>(found->storage.data());
    TileRun* run = found->runs.data() + found->run_count;
    int32_t used = found->used, last_tile = found->last_tile;
    const auto entry_of = [&](int32_t tile) {
      if (tile != last_tile) *run++ = {tile, used};
      last_tile = tile;
      return entries + used++;
    };
    for (int i = 0; i < block.n; ++i, g += n_, ++lookup) {
      const scalar_t weight = block.weight_of(i);
      if (!(weight > 0) || (!taps.one_level && level_of(tiled_, block, i).grad == nullptr)) continue;
      if (texels[i] >= 0) {
        Entry* const entry = entry_of(tiles[i]);
        entry->texel = texels[i];
        entry->x = taps.x[i];
        entry->y = taps.y[i];
        fill(g, lookup, weight, entry);
        continue;
      }
      const SingleTexels<scalar_t> single = single_texels(tiled_, block, i, weight);
      for (int k = 0; k < single.count; ++k) {
        Entry* const entry = entry_of(single.tile[k]);
        entry->texel = -1 - single.texel[k];
        entry->x = entry->y = 0;
        fill(g, lookup, single.weight[k], entry);
      }
    }
    found->used = used;
    found->run_count = static_cast<int32_t>(run - found->runs.data());
    found->last_tile = last_tile;
  }

  void sort_entries(const FoundEntries& found, int32_t* next, double* entries) const override {
    const Entry* const from = reinterpret_cast<const Entry*>(found.storage.data());
    Entry* const to = reinterpret_cast<Entry*>(entries);
    const TileRun* const last = found.runs.data() + found.run_count;
    for (const TileRun* run = found.runs.data(); run < last; ++run) {
      const int32_t begin = run[0].begin, end = run[1].begin, place = next[run->tile];
      for (int32_t e = begin; e < end; ++e) to[place + e - begin] = from[e];
      next[run->tile] = place + end - begin;
    }
  }

  void add_entries(const Chunk* first, const Chunk* last, int32_t tile, double* sums) const override {
    const int64_t row = static_cast<int64_t>(n_) << tiled_.shift;
    for (const Chunk* chunk = first; chunk < last; ++chunk) {
      const Entry* const entries = reinterpret_cast<const Entry*>(chunk->entries.get());
      const Entry* const end = entries + chunk->start[tile + 1];
      for (const Entry* entry = entries + chunk->start[tile]; entry < end; ++entry) {
        const scalar_t* g;
        double weight = 1;
        if constexpr (kChannels > 0) {
          g = entry->values;
        } else {
          g = grad_values_ + (chunk->begin + entry->lookup) * n_;
          weight = entry->weight;
        }
        if (entry->texel < 0) {
          double* const texel = sums + static_cast<int64_t>(-1 - entry->texel) * n_;
          for (int k = 0; k < n_; ++k) texel[k] += weight * g[k];
          continue;
        }
        double* const low = sums + static_cast<int64_t>(entry->texel) * n_;
        add_square<kChannels>(low, low + row, n_, entry->x, entry->y, weight, g);
      }
    }
  }
};

}  // namespace

TiledLevels::TiledLevels(int64_t channel_count) : channels(static_cast<int32_t>(channel_count)) {
  shift = 7;
  while (shift > 2 && (int64_t(sizeof(double)) * channel_count << (2 * shift)) > kTileBytes) --shift;
}

void TiledLevels::add(void* grad, int64_t item_stride, int32_t width, int32_t rows) {
  const int32_t side = 1 << shift, per_row = (width + side - 1) >> shift, per_column = (rows + side - 1) >> shift;
  const int64_t texels = static_cast<int64_t>(width) * rows, sums = texels * channels;
  const bool in_squares = 4 * sums * int64_t(sizeof(double)) <= kSquareBytes;
  levels.push_back({grad, item_stride, width, rows, per_row, tile_count, in_squares, sum_count});
  texel_count += texels;
  sum_count += in_squares ? 4 * sums : sums;
  if (grad != nullptr) tile_count += per_row * per_column;
}

template <class scalar_t>
void scatter_texels(const TiledLevels& tiled, const scalar_t* grad_values, int64_t targets, int64_t lookups,
                    int64_t entries_per_lookup, const ScatterSource<scalar_t>& source) {
  if (targets == 0 || tiled.tile_count == 0 || tiled.channels == 0) return;
  const auto go = [&](auto count) {
    ChannelScatter<scalar_t, decltype(count)::value>(tiled, grad_values, targets, lookups, source)
        .run(entries_per_lookup);
  };
  if constexpr (std::is_same_v<scalar_t, float>) {
    if (tiled.channels == 1) return go(std::integral_constant<int, 1>());
    if (tiled.channels == 3) return go(std::integral_constant<int, 3>());
    if (tiled.channels == 4) return go(std::integral_constant<int, 4>());
  }
  go(std::integral_constant<int, 0>());
}

template void scatter_texels(const TiledLevels&, const float*, int64_t, int64_t, int64_t, const ScatterSource<float>&);
template void scatter_texels(const TiledLevels&, const double*, int64_t, int64_t, int64_t,
                             const ScatterSource<double>&);

}  // namespace diffrender

// Rows and vectors in registers: which lanes hold which elements, and how they come and go.
//
// A *group* of LANES lanes holds one row, ELEMENTS neighbours a lane and VECTORS times that. With
// DIM 0 a group is a warp that goes over a row in strips of 32 single elements.

#if DIM == 0
#define ELEMENTS 1
#define LANES 32
#define VECTORS 1
#define STRIP 32u
#else
// As many as fill the 16 bytes of one access to the rows.
#define ELEMENTS (ROW_TYPE == 0 ? 4 : 8)
#define LANES (DIM / ELEMENTS < 32 ? DIM / ELEMENTS : 32)
#define VECTORS (DIM / ELEMENTS / LANES)
#define STRIP DIM
#endif
// Groups of a warp.
#define GROUPS (32 / LANES)
// Rows that a group has on their way at a time: few enough for 64 registers, no more than a warp's
// 32 rows are for each group.
#define AT_ONCE (LANES < 4 ? LANES : 4)

// One strip of a row, as far as it lies with this lane.
struct Row {
  float x[VECTORS][ELEMENTS];
};

// The column of element 0 of vector `v` of this lane, in a strip.
__device__ __forceinline__ u32 column_of(u32 v) {
  return (v * LANES + threadIdx.x % LANES) * ELEMENTS;
}

// The lanes of this thread's group.
__device__ __forceinline__ u32 group_mask() {
  return LANES == 32 ? ALL_LANES : ((1u << (LANES % 32)) - 1) << (threadIdx.x % 32 / LANES * LANES);
}

__device__ __forceinline__ Row zeros() {
  Row row;
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) {
      row.x[v][e] = 0.0f;
    }
  }
  return row;
}

__device__ __forceinline__ void put_bits(float* to, const u32x4& four) {
  to[0] = __uint_as_float(four.x), to[1] = __uint_as_float(four.y);
  to[2] = __uint_as_float(four.z), to[3] = __uint_as_float(four.w);
}

// The bits of the strip that starts at element `first` of `base`, as they lie there, packed from
// element 0 of each vector on; `columns` are left in the row. CONSTANT: nothing writes there while
// the kernel runs. A kernel with several strips on their way loads all before it widens one.
template <int TYPE, bool CONSTANT = false>
__device__ __forceinline__ Row load_bits(const void* base, u64 first, u32 columns) {
  Row row;
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
    const u32 column = column_of(v);
    const Element<TYPE>* from = static_cast<const Element<TYPE>*>(base) + first + column;
    if constexpr (ELEMENTS == 1) {
      u32 bits = 0;
      if (column < columns) {
        if constexpr (TYPE == 0) {
          bits = __float_as_uint(*from);
        } else {
          bits = from->bits;
        }
      }
      row.x[v][0] = __uint_as_float(bits);
    } else if constexpr (ELEMENTS == 4 && TYPE != 0) {
      const u32x2 four = CONSTANT ? fetch8(from) : load8(from);
      row.x[v][0] = __uint_as_float(four.x), row.x[v][1] = __uint_as_float(four.y);
    } else {
      constexpr u32 WORDS = TYPE == 0 ? ELEMENTS : ELEMENTS / 2;
#pragma unroll
      for (u32 w = 0; w < WORDS; w += 4) {
        put_bits(row.x[v] + w, CONSTANT ? fetch16(from + w) : load16(from + w));
      }
    }
  }
  return row;
}

// The numbers of bits.
template <int TYPE>
__device__ __forceinline__ void widen(Row& row) {
  if constexpr (TYPE != 0) {
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
      // Note: from the last on, so that no word is written before it is read.
#pragma unroll
      for (u32 e = ELEMENTS; e-- > 0;) {
        const u32 bits = __float_as_uint(row.x[v][e / 2]) >> e % 2 * 16;
        row.x[v][e] = to_float(Element<TYPE>{static_cast<u16>(bits)});
      }
    }
  }
}

template <int TYPE, bool CONSTANT = false>
__device__ __forceinline__ Row load_strip(const void* base, u64 first, u32 columns) {
  Row row = load_bits<TYPE, CONSTANT>(base, first, columns);
  widen<TYPE>(row);
  return row;
}

// Bits of a strip, and of which type they are.
struct Strip {
  Row row;
  u32 type;
};

template <int TYPE>
__device__ __forceinline__ Strip strip_at(const void* base, u64 first, u32 columns) {
  return Strip{load_bits<TYPE, true>(base, first, columns), TYPE};
}

// The same of a strip whose type only the device knows: f32, ONE or OTHER. There is no branch, as
// the compiler would wait for each load at the end of its own.
template <int ONE, int OTHER>
__device__ __forceinline__ Strip strip_of(const void* base, u64 first, u32 type, u32 columns) {
  if constexpr (ONE == 0 && OTHER == 0) {
    return strip_at<0>(base, first, columns);
  }
  Strip strip;
  strip.type = type;
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
    const u32 column = column_of(v);
    const char* from = static_cast<const char*>(base) + (first + column) * (type == 0 ? 4 : 2);
    float* to = strip.row.x[v];
    if constexpr (ELEMENTS == 1) {
      u32 bits = 0;
      if (column < columns) {
        bits = type == 0 ? *reinterpret_cast<const u32*>(from)
                         : *reinterpret_cast<const u16*>(from);
      }
      to[0] = __uint_as_float(bits);
    } else if constexpr (ELEMENTS == 4) {
      put_bits(to, fetch16_or_8(from, type == 0));
    } else {
      put_bits(to, fetch16(from));
      // Note: what 16 bits need not is read again, which is cheaper than a branch.
      put_bits(to + 4, fetch16(type == 0 ? from + 16 : from));
    }
  }
  return strip;
}

// Its numbers, where it is of f32 or of one of these types.
template <int ONE, int OTHER>
__device__ __forceinline__ Row numbers(Strip strip) {
  if (ONE != 0 && strip.type == ONE) {
    widen<ONE>(strip.row);
  } else if (OTHER != 0 && OTHER != ONE && strip.type == OTHER) {
    widen<OTHER>(strip.row);
  }
  return strip.row;
}

// Writes eight 16-bit elements in one access.
__device__ __forceinline__ void store_eight(void* to, const u32 (&bits)[8]) {
  store16(to, u32x4{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
                    bits[6] | bits[7] << 16});
}

// Writes the strip, rounded to nearest where elements are narrow.
template <int TYPE>
__device__ __forceinline__ void store_strip(const Row& row, void* base, u64 first, u32 columns) {
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
    const u32 column = column_of(v);
    Element<TYPE>* to = static_cast<Element<TYPE>*>(base) + first + column;
    if constexpr (ELEMENTS == 1) {
      if (column < columns) {
        *to = from_float<Element<TYPE>>(row.x[v][0]);
      }
    } else if constexpr (ELEMENTS == 8 && TYPE != 0) {
      u32 bits[8];
#pragma unroll
      for (u32 e = 0; e < 8; e++) {
        bits[e] = from_float<Element<TYPE>>(row.x[v][e]).bits;
      }
      store_eight(to, bits);
    } else {
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e += 4) {
        store4(to + e, f32x4{row.x[v][e], row.x[v][e + 1], row.x[v][e + 2], row.x[v][e + 3]});
      }
    }
  }
}

// sum += x, element by element.
__device__ __forceinline__ void add(Row& sum, const Row& x) {
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) {
      sum.x[v][e] = __fadd_rn(sum.x[v][e], x.x[v][e]);
    }
  }
}

// x *= factor, each product rounded.
__device__ __forceinline__ void scale(Row& x, float factor) {
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) {
      x.x[v][e] = __fmul_rn(x.x[v][e], factor);
    }
  }
}

// Strips of a row of `dim` elements.
__device__ __forceinline__ u32 num_strips(u32 dim) {
  return DIM == 0 ? (dim + STRIP - 1) / STRIP : 1;
}

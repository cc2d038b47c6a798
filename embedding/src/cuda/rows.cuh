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

// The strip that starts at element `first` of `base`; `columns` are left in the row. CONSTANT:
// nothing writes there while the kernel runs.
template <int TYPE, bool CONSTANT = false>
__device__ __forceinline__ Row load_strip(const void* base, u64 first, u32 columns) {
  Row row;
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
    const u32 column = column_of(v);
    const Element<TYPE>* from = static_cast<const Element<TYPE>*>(base) + first + column;
    if constexpr (ELEMENTS == 1) {
      row.x[v][0] = column < columns ? to_float(*from) : 0.0f;
    } else if constexpr (ELEMENTS == 8 && TYPE != 0) {
      const u32x4 eight = CONSTANT ? fetch16(from) : load16(from);
      const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (u32 w = 0; w < 4; w++) {
        row.x[v][2 * w] = to_float(Element<TYPE>{static_cast<u16>(words[w])});
        row.x[v][2 * w + 1] = to_float(Element<TYPE>{static_cast<u16>(words[w] >> 16)});
      }
    } else {
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e += 4) {
        const f32x4 four = CONSTANT ? fetch4(from + e) : load4(from + e);
        row.x[v][e] = four.x, row.x[v][e + 1] = four.y, row.x[v][e + 2] = four.z,
        row.x[v][e + 3] = four.w;
      }
    }
  }
  return row;
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

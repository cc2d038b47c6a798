//! Borrowed views: row-major matrices with a row stride, and jagged lists.

/// A read-only row-major matrix: `rows × cols`, `stride` elements from one row's start to the next.
#[derive(Debug, Clone, Copy)]
pub struct MatRef<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A writable row-major matrix: `rows × cols`, `stride` elements from one row's start to the next.
#[derive(Debug)]
pub struct MatMut<'a, T = f32> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// Elements that a matrix of this shape spans: the last row ends with its last column.
pub(crate) const fn span(rows: usize, cols: usize, stride: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1) * stride + cols }
}

/// As [`span`], of which there are `len` elements.
fn checked_span(len: usize, rows: usize, cols: usize, stride: usize) -> usize {
    assert!(stride >= cols, "rows of {cols} elements overlap at a stride of {stride}");
    let needed = span(rows, cols, stride);
    assert!(len >= needed, "a {rows} × {cols} matrix needs {needed} elements, got {len}");
    needed
}

/// What handles and views say of their shape.
macro_rules! shape_getters {
    () => {
        /// Number of rows.
        pub fn rows(&self) -> usize {
            self.rows
        }

        /// Number of columns.
        pub fn cols(&self) -> usize {
            self.cols
        }

        /// Elements from one row's start to the next.
        pub fn stride(&self) -> usize {
            self.stride
        }
    };
}
pub(crate) use shape_getters;

impl<'a, T> MatRef<'a, T> {
    /// A dense matrix over `data`.
    ///
    /// # Panics
    /// As [`Self::with_stride`].
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// When `data` is shorter than the shape needs, or rows would overlap.
    pub fn with_stride(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Self {
        let needed = checked_span(data.len(), rows, cols, stride);
        Self { data: &data[..needed], rows, cols, stride }
    }

    shape_getters!();

    /// Row `index`, `cols` elements.
    #[inline]
    pub fn row(&self, index: usize) -> &'a [T] {
        &self.data[index * self.stride..][..self.cols]
    }

    /// All elements from the first row's start to the last row's end, gaps between rows included.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// The columns `first .. first + count`, same rows.
    pub fn columns(&self, first: usize, count: usize) -> MatRef<'a, T> {
        assert!(first + count <= self.cols, "columns {first}..{} of {}", first + count, self.cols);
        let data = if self.rows == 0 { self.data } else { &self.data[first..] };
        MatRef::with_stride(data, self.rows, count, self.stride)
    }

    /// The rows `first .. first + count`.
    pub fn rows_range(&self, first: usize, count: usize) -> MatRef<'a, T> {
        assert!(first + count <= self.rows, "rows {first}..{} of {}", first + count, self.rows);
        let data = if count == 0 { &self.data[..0] } else { &self.data[first * self.stride..] };
        MatRef::with_stride(data, count, self.cols, self.stride)
    }
}

impl<'a, T> MatMut<'a, T> {
    /// A dense matrix over `data`.
    ///
    /// # Panics
    /// As [`Self::with_stride`].
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// When `data` is shorter than the shape needs, or rows would overlap.
    pub fn with_stride(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Self {
        let needed = checked_span(data.len(), rows, cols, stride);
        Self { data: &mut data[..needed], rows, cols, stride }
    }

    shape_getters!();

    /// The same matrix for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// Row `index`, `cols` elements.
    #[inline]
    pub fn row(&self, index: usize) -> &[T] {
        &self.data[index * self.stride..][..self.cols]
    }

    /// Row `index`, writable.
    #[inline]
    pub fn row_mut(&mut self, index: usize) -> &mut [T] {
        &mut self.data[index * self.stride..][..self.cols]
    }

    /// All elements from the first row's start to the last row's end, gaps between rows included.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.data
    }

    /// The columns `first .. first + count`, same rows, writable.
    pub fn columns_mut(&mut self, first: usize, count: usize) -> MatMut<'_, T> {
        assert!(first + count <= self.cols, "columns {first}..{} of {}", first + count, self.cols);
        let (rows, stride) = (self.rows, self.stride);
        let data = if rows == 0 { &mut self.data[..0] } else { &mut self.data[first..] };
        MatMut::with_stride(data, rows, count, stride)
    }

    /// The rows `first .. first + count`, writable.
    pub fn rows_range_mut(&mut self, first: usize, count: usize) -> MatMut<'_, T> {
        assert!(first + count <= self.rows, "rows {first}..{} of {}", first + count, self.rows);
        let (cols, stride) = (self.cols, self.stride);
        let data = if count == 0 { &mut self.data[..0] } else { &mut self.data[first * stride..] };
        MatMut::with_stride(data, count, cols, stride)
    }
}

/// One list of values per sample: sample `i` owns `values[offsets[i] .. offsets[i + 1]]`.
///
/// ```text
/// values   7 3 3 9 1        offsets  0 2 2 5
/// sample 0: 7 3    sample 1: (empty)    sample 2: 3 9 1
/// ```
#[derive(Debug, Clone, Copy)]
pub struct JaggedRef<'a> {
    /// All values, sample after sample.
    pub values: &'a [u64],
    /// `num_samples + 1` positions in `values`, never falling; the first is 0, the last the number
    /// of values.
    pub offsets: &'a [u32],
}

impl<'a> JaggedRef<'a> {
    /// A view over checked parts.
    ///
    /// # Panics
    /// When `offsets` does not start at 0, falls, or does not end at the number of values.
    pub fn new(values: &'a [u64], offsets: &'a [u32]) -> Self {
        assert_eq!(offsets.first(), Some(&0), "offsets start at 0");
        assert_eq!(
            offsets.last().map(|&end| end as usize),
            Some(values.len()),
            "offsets end at the number of values"
        );
        assert!(offsets.is_sorted(), "offsets never fall");
        Self { values, offsets }
    }

    /// Number of samples.
    pub fn num_samples(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The values of one sample.
    #[inline]
    pub fn bag(&self, sample: usize) -> &'a [u64] {
        &self.values[self.offsets[sample] as usize..self.offsets[sample + 1] as usize]
    }

    /// Whether every sample has exactly one value, so that sample and position are the same number.
    pub fn is_one_hot(&self) -> bool {
        self.values.len() == self.num_samples()
            && self.offsets.iter().enumerate().all(|(i, &o)| o as usize == i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strided_views_address_what_they_name() {
        let mut data: Vec<u32> = (0..12).collect();
        let whole = MatRef::new(&data, 3, 4);
        let middle = whole.columns(1, 2).rows_range(1, 2);
        assert_eq!(middle.row(0), [5, 6]);
        assert_eq!(middle.row(1), [9, 10]);
        let mut whole = MatMut::new(&mut data, 3, 4);
        whole.columns_mut(3, 1).row_mut(2)[0] = 77;
        assert_eq!(whole.row(2), [8, 9, 10, 77]);
    }

    #[test]
    fn empty_shapes_are_fine() {
        let none: [f32; 0] = [];
        let empty = MatRef::new(&none, 0, 4);
        assert_eq!(empty.columns(1, 2).rows(), 0);
        assert!(JaggedRef::new(&[], &[0]).is_one_hot());
    }

    #[test]
    #[should_panic(expected = "needs 12 elements, got 11")]
    fn too_little_data_is_refused() {
        MatRef::new(&[0_u32; 11], 3, 4);
    }

    #[test]
    fn bags() {
        let jagged = JaggedRef::new(&[7, 3, 3, 9, 1], &[0, 2, 2, 5]);
        assert_eq!(jagged.bag(0), [7, 3]);
        assert!(jagged.bag(1).is_empty());
        assert_eq!(jagged.bag(2), [3, 9, 1]);
        assert!(!jagged.is_one_hot());
    }
}

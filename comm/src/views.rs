//! A list of byte slices that needs no allocation while it is short.

const FEW: usize = 16;

#[derive(Default)]
pub(crate) struct Views<'a> {
    few: [&'a [u8]; FEW],
    len: usize,
    many: Vec<&'a [u8]>,
}

impl<'a> Views<'a> {
    pub(crate) fn push(&mut self, view: &'a [u8]) {
        if self.len < FEW {
            self.few[self.len] = view;
        } else {
            if self.len == FEW {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(view);
        }
        self.len += 1;
    }

    pub(crate) fn as_slice(&self) -> &[&'a [u8]] {
        match self.len <= FEW {
            true => &self.few[..self.len],
            false => &self.many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long() {
        let bytes: Vec<u8> = (0..40).collect();
        for count in [0, 1, 16, 17, 40] {
            let mut views = Views::default();
            bytes[..count].chunks(1).for_each(|chunk| views.push(chunk));
            assert_eq!(views.as_slice().concat(), bytes[..count]);
        }
    }
}

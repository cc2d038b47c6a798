//! Names for what is not finite: what the forward pass makes, and the gradients of dense
//! parameters.

use super::{Call, Model};
use crate::error::{Error, Result};
use half::bf16;
use headlong_device::{DType, Mat, MatRef, Stream};
use headlong_mlp::finite::{FindArgs, Found, Looked, MAX_MATRICES, NONE};
use headlong_mlp::mlp::Mlp;

/// Elements at whose multiples the slots of an arena start.
const SLOT_ALIGN: usize = 16;

/// A matrix of the forward pass: its columns are one place, or one for each table.
struct Made {
    mat: Mat,
    places: usize,
}

/// The first row with an element that is `odd`.
fn first_row<T>(mat: MatRef<'_, T>, odd: impl Fn(&T) -> bool) -> Option<usize> {
    (0..mat.rows()).find(|&row| mat.row(row).iter().any(&odd))
}

impl Model {
    /// What the last micro-batch of a call makes, in the order of the forward pass; and its first
    /// sample. Allocates nothing.
    fn made(&self, call: &Call<'_>) -> (usize, impl Iterator<Item = Made>) {
        let call = call.micro_batch(call.num_micro_batches.saturating_sub(1));
        let (first, count) = call.samples();
        let outputs = move |mlp: &Mlp, index: usize| {
            let output = mlp.layers().get(index)?.output()?;
            Some(output.first_rows(count))
        };
        let bottom =
            (0..self.bottom.layers().len()).filter_map(move |index| outputs(&self.bottom, index));
        let top = (0..self.top.layers().len()).filter_map(move |index| outputs(&self.top, index));
        let crossed = self.cross.iter().flat_map(|cross| cross.outputs());
        let one = |mat| Made { mat, places: 1 };
        let tables =
            Made { mat: self.vectors.rows_range(first, count), places: self.tables.specs().len() };
        let made = std::iter::once(one(call.now.dense.rows_range(first, count)))
            .chain(bottom.map(one))
            .chain([one(self.bottom_out.first_rows(count)), tables])
            .chain(crossed.map(move |mat| one(mat.first_rows(count))))
            .chain([one(self.top_in.first_rows(count))])
            .chain(top.map(one))
            .chain([one(self.logits.rows_range(first, count))]);
        (first, made)
    }

    /// The names of all places, in the same order.
    fn place_names(&self) -> Vec<String> {
        let outputs = |mlp: &Mlp| -> Vec<String> {
            let layers = mlp.layers().iter().filter(|layer| layer.output().is_some());
            layers.map(|layer| format!("output of layer {}", layer.name())).collect()
        };
        let mut names = vec!["dense input".to_owned()];
        names.extend(outputs(&self.bottom));
        names.push("output of the bottom network".to_owned());
        names.extend(
            self.tables.specs().iter().map(|spec| format!("vector of table {}", spec.name)),
        );
        let crossed = self.cross.as_ref().map_or(0, |cross| cross.outputs().len());
        names.extend((0..crossed).map(|layer| format!("output of layer cross.{layer}")));
        names.push("output of the interaction".to_owned());
        names.extend(outputs(&self.top));
        names.push("logit".to_owned());
        names
    }

    /// The first thing, in the order of the forward pass, that is not a number; of the last
    /// micro-batch, where there are several. For the CPU, once the step has ended.
    pub(crate) fn first_non_finite(&self, call: &Call<'_>) -> Option<String> {
        let (first, made) = self.made(call);
        let places = made.flat_map(|Made { mat, places }| {
            let cols = mat.cols() / places.max(1);
            (0..places).map(move |place| mat.columns(place * cols, cols)).collect::<Vec<_>>()
        });
        let sample = |mat: &Mat| match mat.dtype() {
            DType::Bf16 => first_row(mat.read().view(), |value: &bf16| !value.is_finite()),
            _ => first_row(mat.read().view(), |value: &f32| !value.is_finite()),
        };
        let found = self
            .place_names()
            .into_iter()
            .zip(places)
            .find_map(|(name, mat)| Some((name, sample(&mat)?)));
        found.map(|(name, row)| format!("{name} (sample {} of the batch)", first + row))
    }

    /// Enqueues the same look on a device, which keeps what it finds until the host asks for it.
    pub(crate) fn find_non_finite(&self, stream: &Stream, call: &Call<'_>) {
        let Some(device_step) = self.dense_step_on_device() else { return };
        let (_, made) = self.made(call);
        let (mut all, mut count) = ([const { None }; MAX_MATRICES], 0);
        for (slot, made) in all.iter_mut().zip(made) {
            (*slot, count) = (Some(made), count + 1);
        }
        let Some(Made { mat, .. }) = &all[0] else { return };
        let mut looked = [Looked { mat, group: 1, place: 0 }; MAX_MATRICES];
        let mut place = 0;
        for (looked, made) in looked.iter_mut().zip(all.iter().flatten()) {
            *looked = Looked { mat: &made.mat, group: made.mat.cols() / made.places.max(1), place };
            place += made.places;
        }
        let rows = call.num_micro_batches * self.share.sum_blocks();
        let (matrices, sums) = (&looked[..count], &self.loss_sums.first_rows(rows));
        headlong_mlp::finite::find(
            stream,
            &FindArgs { matrices, sums, device_step, record: &self.record },
        );
    }

    /// Forgets what was found: before the first step.
    pub(super) fn forget_non_finite(&self) -> Result<()> {
        self.record.copy_from(&[NONE]).map_err(Error::failed("the record of a step cannot be set"))
    }

    /// What a device has found in the step over the batch of slot `slot`, which was waited for;
    /// nothing where another rank has.
    pub(crate) fn found_non_finite(
        &self,
        slot: usize,
        step: u64,
        call: &Call<'_>,
    ) -> Option<String> {
        let found =
            Found::of(self.record_of(&self.slots[slot])).filter(|found| found.step == step)?;
        let name = self.place_names().into_iter().nth(found.place)?;
        Some(format!("{name} (sample {} of the batch)", self.made(call).0 + found.sample))
    }

    /// The dense parameter whose gradient lies at element `index` of their arena.
    pub(crate) fn name_of_gradient(&self, index: usize) -> Option<&str> {
        let mut start = 0_usize;
        self.parameters.iter().find_map(|parameter| {
            let len = parameter.shape.iter().product::<u64>() as usize;
            let slot = start.next_multiple_of(SLOT_ALIGN);
            start = slot + len;
            (slot..start).contains(&index).then_some(parameter.name.as_str())
        })
    }
}

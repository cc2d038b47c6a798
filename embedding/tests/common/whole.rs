//! Tables whose rows share storage, right and broken: low rank, its tanh, sums of two hashed rows,
//! products of quotient and remainder.

use headlong_device::optimizer::{Optimizer, StateWidth, Step};
use headlong_device::{DType, MatMut, MatRef, Stream};
use headlong_embedding::*;
use std::collections::BTreeMap;

/// Columns of a factor, buckets of hashed rows, rows of a remainder.
const SIZE: u64 = 7;

/// How a vector is made of the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `factor[i] · projection`.
    LowRank,
    /// The tanh of that: not linear in any part.
    LowRankTanh,
    /// `first[h1(i)] + second[h2(i)]`.
    DoubleHash,
    /// `quotient[i / m] ⊙ remainder[i mod m]`.
    QuotientRemainder,
}

impl Shape {
    pub const ALL: [Self; 4] =
        [Self::LowRank, Self::LowRankTanh, Self::DoubleHash, Self::QuotientRemainder];

    /// Name, rows and columns of both parts.
    fn parts(self, spec: &TableSpec) -> [(&'static str, u64, usize); 2] {
        let (rows, dim) = (spec.rows, spec.dim);
        match self {
            Self::LowRank | Self::LowRankTanh => {
                [("factor", rows, SIZE as usize), ("projection", SIZE, dim)]
            }
            Self::DoubleHash => [("first", SIZE, dim), ("second", SIZE, dim)],
            Self::QuotientRemainder => {
                [("quotient", rows.div_ceil(SIZE), dim), ("remainder", SIZE, dim)]
            }
        }
    }
}

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// The gradient of the second part has the wrong sign.
    SignOfSecond,
    /// The second part stays as it began.
    SecondIsNotTrained,
    /// The gradient of the first part is that of the vector.
    FirstForgetsSecond,
    /// Every step is taken twice.
    StepsTwice,
    /// The learning rate is ten times what the step says.
    TenfoldRate,
    /// The learning rate is that of the first step.
    RateOfFirstStep,
    /// The number of the step is always 1.
    NumberIsOne,
    /// All rows have the optimiser's state of row 0.
    StateOfRowZero,
    /// The optimiser's state begins again in every step.
    StateIsForgotten,
    /// It says that it takes a hundredth.
    MemoryIsAHundredth,
    /// It says that it takes half.
    MemoryIsHalf,
    /// It keeps gradients for ever.
    MemoryGrows,
    /// A state is called `factor_accumulator`.
    StateIsMisnamed,
    /// The states come after all weights.
    StatesComeLast,
    /// A state is not listed.
    StateIsNotListed,
    /// A state is saved as it began.
    StateIsNotSaved,
    /// Parts are loaded the wrong way round.
    LoadSwapsRows,
    /// Adagrad's epsilon is inside the root.
    EpsilonInside,
    /// Row-wise Adagrad adds up squares: not their mean.
    SumOfSquares,
    /// The last gradient counts for all rows of the step.
    LastGradientForAll,
    /// The row after the one that is meant moves along.
    NextRowMoves,
    /// All weights shrink a little in each step.
    WeightsDecay,
    /// Gradients of the step before are added.
    GradientsLinger,
    /// Gradients are clipped.
    GradientsAreClipped,
    /// Rows of a step take steps of their own where they share storage.
    EachRowSteps,
    /// Only the last of the gradients of what rows share is kept.
    SharedGradientIsOverwritten,
    /// Initial values are the same in every table.
    SameInEveryTable,
    /// Vectors of a list depend on how many there are.
    LookupCounts,
    /// A step of no rows is a step all the same.
    EmptyStepCounts,
}

pub struct WholeKind {
    pub shape: Shape,
    pub broken: Broken,
}

impl TableKind for WholeKind {
    fn abilities(&self) -> Abilities {
        Abilities {
            grains: &[Grain::Whole],
            keys: &[Keys::RowIndices],
            dtypes: &[DType::F32],
            devices: &["cpu"],
            options: Some(&[]),
        }
    }

    fn memory(&self, spec: &TableSpec, optimizer: &Optimizer) -> MemoryNeeds {
        let parts = self.shape.parts(spec).into_iter();
        let needs: MemoryNeeds = parts
            .map(|(_, rows, dim)| TableSpec { rows, dim, ..spec.clone() }.dense_memory(optimizer))
            .sum();
        let part = match self.broken {
            Broken::MemoryIsAHundredth => 100,
            Broken::MemoryIsHalf => 2,
            _ => 1,
        };
        let (weight_bytes, state_bytes) = (needs.weight_bytes / part, needs.state_bytes / part);
        MemoryNeeds { weight_bytes, state_bytes, ..needs }
    }

    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>> {
        spec.check()?;
        let mut parts = self.shape.parts(spec).map(|part| Part::new(part, env.optimizer));
        let seed = if self.broken == Broken::SameInEveryTable { 0 } else { env.table_index };
        let values = TableEnv { table_index: seed, ..*env }.initial_values(spec);
        let mut element = 0;
        for part in &mut parts {
            values.fill(element, &mut part.tensors[0].1);
            element += part.tensors[0].1.len() as u64;
        }
        let near_one = self.shape == Shape::QuotientRemainder;
        parts[1].tensors[0]
            .1
            .iter_mut()
            .for_each(|value| *value += if near_one { 1.0 } else { 0.0 });
        let memory = self.memory(spec, env.optimizer);
        let initial = parts.each_ref().map(|part| part.tensors.clone());
        Ok(Box::new(Table {
            spec: spec.clone(),
            kind: WholeKind { ..*self },
            memory,
            parts,
            initial: if needs_initial(self.broken) { initial.to_vec() } else { Vec::new() },
            first_rate: None,
            lingering: Vec::new(),
        }))
    }
}

/// Whether the broken table keeps how it began, which the right one has no memory for.
fn needs_initial(broken: Broken) -> bool {
    matches!(broken, Broken::StateIsForgotten | Broken::StateIsNotSaved)
}

#[derive(Clone)]
struct Part {
    cols: usize,
    tensors: Vec<(TensorSpec, Vec<f32>)>,
}

impl Part {
    fn new((name, rows, cols): (&str, u64, usize), optimizer: &Optimizer) -> Self {
        let tensor = |name: String, cols: usize, value: f32| {
            (TensorSpec { name, rows, cols }, vec![value; rows as usize * cols])
        };
        let states = optimizer.states().into_iter().map(|state| {
            let cols = if state.width == StateWidth::PerRow { 1 } else { cols };
            tensor(format!("{name}.{}", state.name), cols, state.initial)
        });
        Self {
            cols,
            tensors: std::iter::once(tensor(name.to_owned(), cols, 0.0)).chain(states).collect(),
        }
    }

    fn row(&self, row: u64) -> &[f32] {
        &self.tensors[0].1[row as usize * self.cols..][..self.cols]
    }

    fn step(&mut self, row: u64, gradient: &[f32], step: &SparseStep, broken: Broken) {
        let state_row = if broken == Broken::StateOfRowZero { 0 } else { row };
        let mut rows = self.tensors.iter_mut().enumerate().map(|(index, (tensor, values))| {
            let row = if index == 0 { row } else { state_row };
            &mut values[row as usize * tensor.cols..][..tensor.cols]
        });
        let weights = rows.next().unwrap_or_default();
        let (first, second) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
        let rate = step.step.learning_rate;
        match (broken, step.optimizer) {
            (Broken::EpsilonInside, Optimizer::Adagrad { epsilon, .. }) => {
                for ((weight, sum), g) in weights.iter_mut().zip(first).zip(gradient) {
                    *sum += g * g;
                    *weight -= rate * g / (*sum + epsilon).sqrt();
                }
            }
            (Broken::SumOfSquares, Optimizer::RowWiseAdagrad { epsilon, .. }) => {
                first[0] += gradient.iter().map(|g| g * g).sum::<f32>();
                let rate = rate / (first[0].sqrt() + epsilon);
                weights.iter_mut().zip(gradient).for_each(|(weight, g)| *weight -= rate * g);
            }
            _ => step.optimizer.apply(step.step, weights, first, second, gradient),
        }
    }
}

/// Gradients of the rows of one part.
type Gradients = BTreeMap<u64, Vec<f32>>;

struct Table {
    spec: TableSpec,
    kind: WholeKind,
    memory: MemoryNeeds,
    parts: [Part; 2],
    initial: Vec<Vec<(TensorSpec, Vec<f32>)>>,
    first_rate: Option<f32>,
    lingering: Vec<[Gradients; 2]>,
}

impl Table {
    /// The row of each part; all of the projection's.
    fn places(&self, row: u64) -> [u64; 2] {
        match self.kind.shape {
            Shape::LowRank | Shape::LowRankTanh => [row, 0],
            Shape::DoubleHash => {
                [row.wrapping_mul(0x9e37_79b9) >> 3, row.wrapping_mul(0x85eb_ca6b) >> 5]
                    .map(|h| h % SIZE)
            }
            Shape::QuotientRemainder => [row / SIZE, row % SIZE],
        }
    }

    fn product(&self, row: u64) -> Vec<f32> {
        let mut vector = vec![0.0; self.spec.dim];
        for (k, factor) in self.parts[0].row(row).iter().enumerate() {
            vector.iter_mut().zip(self.parts[1].row(k as u64)).for_each(|(v, p)| *v += factor * p);
        }
        vector
    }

    fn vector(&self, row: u64) -> Vec<f32> {
        let [a, b] = self.places(row);
        let pair = || self.parts[0].row(a).iter().zip(self.parts[1].row(b));
        match self.kind.shape {
            Shape::LowRank => self.product(row),
            Shape::LowRankTanh => self.product(row).into_iter().map(f32::tanh).collect(),
            Shape::DoubleHash => pair().map(|(a, b)| a + b).collect(),
            Shape::QuotientRemainder => pair().map(|(a, b)| a * b).collect(),
        }
    }

    /// What the gradient of a row's vector is to the rows of the parts.
    fn gradients(&self, row: u64, gradient: &[f32]) -> Vec<(usize, u64, Vec<f32>)> {
        let [a, b] = self.places(row);
        let broken = self.kind.broken;
        let times = |gradient: &[f32], other: &[f32]| -> Vec<f32> {
            gradient.iter().zip(other).map(|(g, other)| g * other).collect()
        };
        match self.kind.shape {
            Shape::DoubleHash => vec![(0, a, gradient.to_vec()), (1, b, gradient.to_vec())],
            Shape::QuotientRemainder if broken == Broken::FirstForgetsSecond => {
                vec![(0, a, gradient.to_vec()), (1, b, times(gradient, self.parts[0].row(a)))]
            }
            Shape::QuotientRemainder => {
                vec![
                    (0, a, times(gradient, self.parts[1].row(b))),
                    (1, b, times(gradient, self.parts[0].row(a))),
                ]
            }
            shape => {
                let gradient = match shape {
                    Shape::LowRankTanh => {
                        let slopes: Vec<f32> =
                            self.product(row).iter().map(|x| 1.0 - x.tanh() * x.tanh()).collect();
                        times(gradient, &slopes)
                    }
                    _ => gradient.to_vec(),
                };
                let factor = self.parts[0].row(row);
                let of_factor = (0..factor.len()).map(|k| match broken {
                    Broken::FirstForgetsSecond => gradient[k % gradient.len()],
                    _ => times(&gradient, self.parts[1].row(k as u64)).iter().sum(),
                });
                let of_projection = factor.iter().enumerate().map(|(k, factor)| {
                    (1, k as u64, gradient.iter().map(|g| g * factor).collect())
                });
                std::iter::once((0, row, of_factor.collect())).chain(of_projection).collect()
            }
        }
    }

    fn sums(&self, rows: &[u64], gradients: &MatRef) -> [Gradients; 2] {
        let mut sums = [Gradients::new(), Gradients::new()];
        for (entry, &row) in rows.iter().enumerate() {
            let entry =
                if self.kind.broken == Broken::LastGradientForAll { rows.len() - 1 } else { entry };
            let clipped: Vec<f32> = match self.kind.broken {
                Broken::GradientsAreClipped => {
                    gradients.row(entry).iter().map(|g| g.clamp(-0.5, 0.5)).collect()
                }
                _ => gradients.row(entry).to_vec(),
            };
            for (part, place, gradient) in self.gradients(row, &clipped) {
                let sum = sums[part].entry(place).or_insert_with(|| vec![0.0; gradient.len()]);
                if self.kind.broken == Broken::SharedGradientIsOverwritten {
                    sum.fill(0.0);
                }
                sum.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += g);
            }
        }
        sums
    }

    fn step(&mut self, mut sums: [Gradients; 2], step: &SparseStep) {
        let broken = self.kind.broken;
        match broken {
            Broken::SignOfSecond => sums[1].values_mut().flatten().for_each(|g| *g = -*g),
            Broken::SecondIsNotTrained => sums[1].clear(),
            Broken::GradientsLinger => {
                let before = std::mem::replace(&mut self.lingering, vec![sums.clone()]);
                for (sums, before) in sums.iter_mut().zip(before.into_iter().flatten()) {
                    for (row, gradient) in before {
                        let sum = sums.entry(row).or_insert_with(|| vec![0.0; gradient.len()]);
                        sum.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += g);
                    }
                }
            }
            Broken::MemoryGrows => self.lingering.push(sums.clone()),
            Broken::StateIsForgotten => {
                for (part, initial) in self.parts.iter_mut().zip(&self.initial) {
                    part.tensors[1..].clone_from_slice(&initial[1..]);
                }
            }
            Broken::WeightsDecay => {
                for part in &mut self.parts {
                    part.tensors[0].1.iter_mut().for_each(|weight| *weight *= 0.99);
                }
            }
            Broken::NextRowMoves => {
                let rows = self.parts[0].tensors[0].0.rows;
                let next: Vec<_> = sums[0]
                    .iter()
                    .map(|(row, gradient)| ((row + 1) % rows, gradient.clone()))
                    .collect();
                sums[0].extend(next);
            }
            _ => {}
        }
        for (part, sums) in self.parts.iter_mut().zip(&sums) {
            for (&row, gradient) in sums {
                part.step(row, gradient, step, broken);
                if broken == Broken::StepsTwice {
                    part.step(row, gradient, step, broken);
                }
            }
        }
    }
}

impl EmbeddingTable for Table {
    fn spec(&self) -> &TableSpec {
        &self.spec
    }

    fn memory(&self) -> MemoryNeeds {
        self.memory
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        let mut tensors: Vec<TensorSpec> = self
            .parts
            .iter()
            .flat_map(|part| &part.tensors)
            .map(|(tensor, _)| tensor.clone())
            .collect();
        match self.kind.broken {
            Broken::StateIsMisnamed => {
                tensors.iter_mut().for_each(|tensor| tensor.name = tensor.name.replace('.', "_"));
            }
            Broken::StatesComeLast => tensors.sort_by_key(|tensor| tensor.name.contains('.')),
            Broken::StateIsNotListed => tensors.retain(|tensor| !tensor.name.contains('.')),
            _ => {}
        }
        tensors
    }

    fn lookup(&mut self, _stream: &Stream, rows: Rows, mut out: MatMut) -> Result<()> {
        for (entry, &row) in rows.indices().iter().enumerate() {
            let mut vector = self.vector(row);
            if self.kind.broken == Broken::LookupCounts {
                vector[0] += rows.indices().len() as f32;
            }
            out.row_mut(entry).copy_from_slice(&vector);
        }
        Ok(())
    }

    fn apply(
        &mut self,
        _stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()> {
        let first_rate = *self.first_rate.get_or_insert(step.step.learning_rate);
        let changed = match self.kind.broken {
            Broken::TenfoldRate => {
                Step { learning_rate: 10.0 * step.step.learning_rate, ..*step.step }
            }
            Broken::RateOfFirstStep => Step { learning_rate: first_rate, ..*step.step },
            Broken::NumberIsOne => Step { number: 1, ..*step.step },
            _ => *step.step,
        };
        let step = &SparseStep { optimizer: step.optimizer, step: &changed };
        let rows = rows.indices();
        if self.kind.broken == Broken::EmptyStepCounts && rows.is_empty() {
            self.parts[0].tensors[0].1[0] += 1.0;
        }
        if self.kind.broken == Broken::EachRowSteps {
            for entry in 0..rows.len() {
                let sums = self.sums(&rows[entry..=entry], &gradients.rows_range(entry, 1));
                self.step(sums, step);
            }
            return Ok(());
        }
        let sums = self.sums(rows, &gradients);
        self.step(sums, step);
        Ok(())
    }

    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        let all: Vec<&(TensorSpec, Vec<f32>)> =
            self.parts.iter().flat_map(|part| &part.tensors).collect();
        for tensor in self.tensors() {
            let is_it = |name: &str| name == tensor.name || name.replace('.', "_") == tensor.name;
            let (_, values) =
                all.iter().find(|(own, _)| is_it(&own.name)).expect("the tensor is one of these");
            let initial = self.initial.iter().flatten().find(|(own, _)| is_it(&own.name));
            match initial.filter(|_| {
                self.kind.broken == Broken::StateIsNotSaved && tensor.name.contains('.')
            }) {
                Some((_, initial)) => sink.rows(&tensor, 0, initial)?,
                None => sink.rows(&tensor, 0, values)?,
            }
        }
        Ok(())
    }

    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        let tensors = self.tensors();
        for (own, values) in self.parts.iter_mut().flat_map(|part| &mut part.tensors) {
            let is_it =
                |tensor: &&TensorSpec| tensor.name.replace('.', "_") == own.name.replace('.', "_");
            let Some(tensor) = tensors.iter().find(is_it) else { continue };
            source.rows(tensor, 0, values)?;
            if self.kind.broken == Broken::LoadSwapsRows {
                let (first, rest) = values.split_at_mut(tensor.cols);
                first.swap_with_slice(&mut rest[..tensor.cols]);
            }
        }
        Ok(())
    }
}

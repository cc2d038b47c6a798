//! A table of one's own with a CUDA body: quotient-remainder embeddings, on the device single.

use headlong_device::cuda::{
    CudaStream, DeviceMemory, DevicePtr, DeviceStep, Launch, OptimizerConstants, Source,
};
use headlong_device::optimizer::{Optimizer, StateWidth};
use headlong_device::{DType, MatMut, MatRef, Stream};
use headlong_embedding::cuda::{CudaStep, CudaTable, DeviceRows};
use headlong_embedding::*;

pub static QUOTIENT_REMAINDER: Source =
    Source { name: "test/quotient_remainder", text: include_str!("quotient_remainder.cu") };

/// `struct Args`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Args {
    pub weights: [DevicePtr; 2],
    pub first: [DevicePtr; 2],
    pub second: [DevicePtr; 2],
    pub sums: DevicePtr,
    pub rows: DevicePtr,
    pub count: DevicePtr,
    pub values: DevicePtr,
    pub device_step: DevicePtr,
    pub step: DeviceStep,
    pub constants: OptimizerConstants,
    pub part_rows: [u32; 2],
    pub dim: u32,
    pub buckets: u32,
}

pub struct QuotientRemainder;

fn parts(spec: &TableSpec) -> [u64; 2] {
    let buckets = (spec.rows as f64).sqrt().ceil() as u64;
    [spec.rows.div_ceil(buckets), buckets]
}

impl TableKind for QuotientRemainder {
    fn abilities(&self) -> Abilities {
        Abilities {
            grains: &[Grain::Whole],
            keys: &[Keys::RowIndices],
            dtypes: &[DType::F32],
            devices: &["cuda", "cpu"],
            options: Some(&[]),
        }
    }

    fn memory(&self, spec: &TableSpec, optimizer: &Optimizer) -> MemoryNeeds {
        let rows = parts(spec).iter().sum();
        let dense = TableSpec { rows, ..spec.clone() }.dense_memory(optimizer);
        MemoryNeeds { work_bytes: rows * spec.dim as u64 * 4, ..dense }
    }

    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>> {
        let device = env.stream.cuda_body().device();
        let mut tensors = Vec::new();
        let mut element = 0;
        for (half, (name, rows)) in
            ["quotient", "remainder"].into_iter().zip(parts(spec)).enumerate()
        {
            let mut values = vec![0.0; rows as usize * spec.dim];
            env.initial_values(spec).fill(element, &mut values);
            element += values.len() as u64;
            values.iter_mut().for_each(|value| *value += half as f32);
            let mut tensor = |name: String, cols: usize, values: Vec<f32>| -> Result<()> {
                let memory = headlong_device::cuda::testing::upload(device, &values)?;
                tensors.push((half, TensorSpec { name, rows, cols }, memory));
                Ok(())
            };
            tensor(name.to_owned(), spec.dim, values)?;
            for state in env.optimizer.states() {
                let cols = if state.width == StateWidth::PerRow { 1 } else { spec.dim };
                tensor(
                    format!("{name}.{}", state.name),
                    cols,
                    vec![state.initial; rows as usize * cols],
                )?;
            }
        }
        let sums = DeviceMemory::new(
            device,
            "sums",
            parts(spec).iter().sum::<u64>() as usize * spec.dim * 4,
        )?;
        let memory = self.memory(spec, env.optimizer);
        Ok(Box::new(Table { spec: spec.clone(), memory, tensors, sums, optimizer: *env.optimizer }))
    }
}

struct Table {
    spec: TableSpec,
    memory: MemoryNeeds,
    tensors: Vec<(usize, TensorSpec, DeviceMemory)>,
    sums: DeviceMemory,
    optimizer: Optimizer,
}

impl Table {
    fn args(&self, rows: DeviceRows, values: DevicePtr) -> Args {
        let tensor = |half: usize, number: usize| {
            let of_half = self.tensors.iter().filter(|(h, ..)| *h == half);
            of_half.skip(number).map(|(_, _, memory)| memory.ptr()).next().unwrap_or_default()
        };
        Args {
            weights: [tensor(0, 0), tensor(1, 0)],
            first: [tensor(0, 1), tensor(1, 1)],
            second: [tensor(0, 2), tensor(1, 2)],
            sums: self.sums.ptr(),
            rows: rows.rows,
            count: rows.count,
            values,
            part_rows: parts(&self.spec).map(|rows| rows as u32),
            dim: self.spec.dim as u32,
            buckets: parts(&self.spec)[1] as u32,
            ..Args::default()
        }
    }

    fn run(&self, stream: &CudaStream, entry: &'static str, args: &Args) {
        let defines = [OptimizerConstants::define(&self.optimizer)];
        stream.run(&QUOTIENT_REMAINDER, &defines, entry, Launch::new(4, 128), args);
    }
}

impl CudaTable for Table {
    fn lookup(&self, stream: &CudaStream, rows: DeviceRows, vectors: DevicePtr) -> Result<()> {
        self.run(stream, "qr_lookup", &self.args(rows, vectors));
        Ok(())
    }

    fn apply(
        &self,
        stream: &CudaStream,
        rows: DeviceRows,
        gradients: DevicePtr,
        step: &CudaStep,
    ) -> Result<()> {
        let args = Args {
            device_step: step.device,
            step: step.host,
            constants: step.constants,
            ..self.args(rows, gradients)
        };
        self.run(stream, "qr_sum", &args);
        self.run(stream, "qr_step", &args);
        Ok(())
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
        self.tensors.iter().map(|(_, tensor, _)| tensor.clone()).collect()
    }

    fn lookup(&mut self, _: &Stream, _: Rows, _: MatMut) -> Result<()> {
        unreachable!("the table lies on a device")
    }

    fn apply(&mut self, _: &Stream, _: Rows, _: MatRef, _: &SparseStep) -> Result<()> {
        unreachable!("the table lies on a device")
    }

    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        for (_, tensor, memory) in &self.tensors {
            sink.rows(tensor, 0, &headlong_device::cuda::testing::download::<f32>(memory)?)?;
        }
        Ok(())
    }

    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        for (_, tensor, memory) in &self.tensors {
            let mut values = vec![0.0; tensor.rows as usize * tensor.cols];
            source.rows(tensor, 0, &mut values)?;
            memory.write(0, headlong_device::cuda::testing::bytes_of(&values))?;
        }
        Ok(())
    }

    fn cuda(&self) -> Option<&dyn CudaTable> {
        Some(self)
    }
}

use super::cuda::{FindKernelArgs, Matrix};
use super::*;
use crate::testing::{frozen_on, wide_on};
use headlong_device::cuda::DeviceStep;
use headlong_device::cuda::testing::{layout_test, stream, upload};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::uniform;
use headlong_device::{ArenaPlan, DType};

mod cuda_tests {
    use super::*;

    const SAMPLES: usize = 300;

    /// Of several values that are not finite, the first of the first matrix, of the first step;
    /// with a finite loss none.
    #[test]
    fn the_first_place_and_sample_are_found() {
        let Some(stream) = stream() else { return };
        let mut plan = ArenaPlan::new("records");
        let (record, half) =
            (plan.matrix("record", DType::U64, 1, 1), plan.matrix("half", DType::F16, SAMPLES, 8));
        let arena = plan.freeze_on(&stream).unwrap();
        let (record, half) = (arena.mat(record), arena.mat(half));
        let sums = |values: &[f32]| frozen_on(&stream, "sums", 3, 2, values);
        let (good, bad) = (sums(&[1.0; 6]), sums(&[1.0, 0.0, 2.0, 0.0, f32::NAN, 0.0]));
        // Gaps between rows hold NaN, which must not be found.
        let mat = |bad: &[(usize, usize)]| {
            let mut values = uniform(1, SAMPLES * 12);
            bad.iter().for_each(|&(row, col)| values[row * 12 + col] = f32::INFINITY);
            wide_on(&stream, "x", SAMPLES, 12, &values)
        };
        let (clean, tables) = (mat(&[]), mat(&[(299, 11), (70, 8), (71, 4)]));
        let find = |matrices: &[Looked<'_>], sums: &Mat, number| {
            let step = DeviceStep::new(&Step { learning_rate: 0.1, number }, &Optimizer::Sgd);
            let memory = upload(stream.cuda_body().device(), &step.words()).unwrap();
            find(&stream, &FindArgs { matrices, sums, device_step: memory.ptr(), record: &record });
            stream.synchronize().unwrap();
            Found::of(record.to_vec::<u64>().unwrap()[0])
        };
        let clear = || record.copy_from(&[NONE]).unwrap();
        let looked = [
            Looked { mat: &clean, group: 12, place: 0 },
            Looked { mat: &tables, group: 4, place: 1 },
            Looked { mat: &half, group: 8, place: 4 },
        ];
        clear();
        half.copy_from(&vec![half::f16::NAN; SAMPLES * 8]).unwrap();
        assert_eq!(find(&looked, &good, 7), None, "the loss is finite");
        assert_eq!(find(&looked[..1], &bad, 7), None, "another rank's");
        assert_eq!(find(&looked[2..], &bad, 9), Some(Found { step: 9, place: 4, sample: 0 }));
        clear();
        let first = Some(Found { step: 9, place: 2, sample: 71 });
        assert_eq!(find(&looked, &bad, 9), first, "the second table comes before the third");
        assert_eq!(find(&looked, &bad, 10), first, "later steps are consequences");
    }

    #[test]
    fn layouts() {
        layout_test!(Matrix, &SOURCE, &[]);
        layout_test!(FindKernelArgs, &SOURCE, &[]);
    }
}

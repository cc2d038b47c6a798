//! The exported file: names and values, and the same predictions in PyTorch.

#[cfg(test)]
mod tests {
    use crate::checkpoint_support::{options, state};
    use crate::python_support::python;
    use headlong::commands::export::export;
    use headlong::state::checkpoint::{
        Cause, Checkpoint, CheckpointDirectory, CheckpointSource, DenseLayout, Layout, RowState,
        Snapshot, TableLayout, TensorId,
    };
    use safetensors::SafeTensors;
    use serde_json::json;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    const DIM: usize = 4;
    const TABLE_ROWS: [usize; 3] = [50, 7, 3];
    /// Inputs and outputs of the layers: three dense features, and 4 + 6 interactions into the top.
    const BOTTOM: [usize; 3] = [3, 5, DIM];
    const TOP: [usize; 3] = [DIM + 6, 8, 1];

    /// A small DLRM with values from a formula.
    struct SmallDlrm;

    fn value(tensor: TensorId, index: u64) -> f32 {
        let place =
            tensor.index as u64 * 7919 + tensor.state.map_or(0, |state| state as u64 + 1) * 104_729;
        let section =
            u64::from(tensor.section == headlong::state::checkpoint::Section::Tables) * 15_485_863;
        let mixed = (index + place + section).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        mixed as f32 / 8_388_608.0 - 1.0
    }

    impl CheckpointSource for SmallDlrm {
        fn layout(&self) -> Layout {
            let stack = |name: &str, widths: &[usize]| -> Vec<DenseLayout> {
                let layer = |(index, pair): (usize, &[usize])| {
                    let parameter = |what: &str, shape: Vec<u64>| DenseLayout {
                        name: format!("{name}.{index}.{what}"),
                        shape,
                        states: vec![],
                    };
                    let (inputs, outputs) = (pair[0] as u64, pair[1] as u64);
                    [parameter("weight", vec![outputs, inputs]), parameter("bias", vec![outputs])]
                };
                widths.windows(2).enumerate().flat_map(layer).collect()
            };
            let table = |(index, rows): (usize, &usize)| TableLayout {
                name: format!("C{}", index + 1),
                rows: *rows as u64,
                dim: DIM as u64,
                states: vec![RowState { name: "accumulator".into(), width: 1 }],
                by_id: false,
            };
            Layout {
                dense: [stack("bottom", &BOTTOM), stack("top", &TOP)].concat(),
                tables: TABLE_ROWS.iter().enumerate().map(table).collect(),
            }
        }

        fn read(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause> {
            let tensors = self.layout().tensors()?;
            let width = tensors.iter().find(|found| found.id == tensor).unwrap().width;
            for (index, out) in (first_row * width..).zip(out) {
                *out = value(tensor, index);
            }
            Ok(())
        }
    }

    /// Saves the model in shards of a few rows and exports it.
    fn exported(folder: &Path) -> PathBuf {
        let directory =
            CheckpointDirectory::open(&folder.join("checkpoints"), options(200, 1)).unwrap();
        let snapshot = Snapshot { source: &SmallDlrm, state: state(1, None), blobs: vec![] };
        let report = directory.save(&snapshot).unwrap();
        let checkpoint = Checkpoint::open(&report.path).unwrap();
        assert!(checkpoint.manifest().files.len() > 5, "tables are spread over files");
        let output = folder.join("model.safetensors");
        let bytes = export(std::slice::from_ref(&checkpoint), &output).unwrap();
        assert_eq!(std::fs::metadata(&output).unwrap().len(), bytes);
        output
    }

    fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
        let data = tensors.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    #[test]
    fn every_parameter_is_there_under_its_original_name_and_no_state() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = std::fs::read(exported(folder.path())).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut names = tensors.names();
        names.sort_unstable();
        let expected = [
            "bot_l.0.bias",
            "bot_l.0.weight",
            "bot_l.2.bias",
            "bot_l.2.weight",
            "emb_l.0.weight",
            "emb_l.1.weight",
            "emb_l.2.weight",
            "top_l.0.bias",
            "top_l.0.weight",
            "top_l.2.bias",
            "top_l.2.weight",
        ];
        assert_eq!(names, expected);
        assert_eq!(tensors.tensor("emb_l.0.weight").unwrap().shape(), [50, 4]);
        assert_eq!(tensors.tensor("top_l.0.weight").unwrap().shape(), [8, 10]);
        let mut source = vec![0.0; 200];
        let first_table = SmallDlrm.layout().tensors().unwrap()[8].id;
        SmallDlrm.read(first_table, 0, &mut source).unwrap();
        assert_eq!(floats(&tensors, "emb_l.0.weight"), source);
    }

    #[test]
    fn a_damaged_checkpoint_is_not_exported() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::remove_file(exported(folder.path())).unwrap();
        let checkpoint =
            headlong::state::checkpoint::open(&folder.path().join("checkpoints")).unwrap();
        let shard = checkpoint.path().join("tables-00002.safetensors");
        let mut bytes = std::fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&shard, bytes).unwrap();
        let output = folder.path().join("model.safetensors");
        let error = headlong::error::chain(
            &export(std::slice::from_ref(&checkpoint), &output).unwrap_err(),
        );
        assert!(error.contains("tables-00002.safetensors is corrupted"), "{error}");
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "no half of a file is left"
        );
    }

    /// One dense layer in double precision: `weight` [outputs, inputs].
    fn linear(weight: &[f32], bias: &[f32], input: &[f64], relu: bool) -> Vec<f64> {
        let rows = weight.chunks_exact(input.len()).zip(bias);
        let output = rows.map(|(row, &bias)| {
            let sum: f64 = row.iter().zip(input).map(|(&w, x)| f64::from(w) * x).sum();
            let sum = sum + f64::from(bias);
            if relu { sum.max(0.0) } else { sum }
        });
        output.collect()
    }

    /// The published forward pass, written down plainly.
    fn logit(tensors: &SafeTensors<'_>, dense: &[f32], rows: &[usize]) -> f64 {
        let layer = |name: &str, input: &[f64], relu| {
            let weight = floats(tensors, &format!("{name}.weight"));
            linear(&weight, &floats(tensors, &format!("{name}.bias")), input, relu)
        };
        let dense: Vec<f64> = dense.iter().copied().map(f64::from).collect();
        let x = layer("bot_l.2", &layer("bot_l.0", &dense, true), true);
        let mut vectors = vec![x.clone()];
        for (table, row) in rows.iter().enumerate() {
            let weight = floats(tensors, &format!("emb_l.{table}.weight"));
            vectors.push(weight[row * DIM..][..DIM].iter().copied().map(f64::from).collect());
        }
        let mut top = x;
        for i in 0..vectors.len() {
            for j in 0..i {
                top.push(vectors[i].iter().zip(&vectors[j]).map(|(a, b)| a * b).sum());
            }
        }
        layer("top_l.2", &layer("top_l.0", &top, true), false)[0]
    }

    #[test]
    fn pytorch_loads_the_file_and_predicts_the_same() {
        let Some(python) = python(&["torch", "safetensors"]) else { return };
        let folder = tempfile::tempdir().unwrap();
        let model = exported(folder.path());
        let bytes = std::fs::read(&model).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let dense: Vec<[f32; 3]> = (0..40)
            .map(|i| [i as f32 / 10.0, (i * i % 7) as f32 - 3.0, (i as f32).sin()])
            .collect();
        let sparse: Vec<[usize; 3]> = (0..40).map(|i| [i * 13 % 50, i % 7, i % 3]).collect();
        let logits: Vec<f64> =
            dense.iter().zip(&sparse).map(|(dense, rows)| logit(&tensors, dense, rows)).collect();
        assert!(
            logits.iter().any(|logit| (logit - logits[0]).abs() > 0.1),
            "the samples differ: {logits:?}"
        );
        let check = |logits: &[f64]| {
            let samples = folder.path().join("samples.json");
            let document = json!({ "dense": dense, "sparse": sparse, "logits": logits });
            std::fs::write(&samples, document.to_string()).unwrap();
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/check_export.py");
            Command::new(&python).arg(script).arg(&model).arg(&samples).output().unwrap()
        };
        let output = check(&logits);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // And the script can tell when they differ.
        let mut wrong = logits;
        wrong[17] += 1e-3;
        assert!(!check(&wrong).status.success());
    }
}

//! The machine that a result belongs to.

use headlong::system::{machine::cores, processor};

/// Name and size of a machine, as far as the system says.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Processor and number of cores, such as `Intel(R) Xeon(R) Processor, 2 cores`.
    pub name: String,
}

impl Machine {
    pub fn here() -> Self {
        Self { name: format!("{}, {} cores", processor::name(), cores()) }
    }

    /// The name as part of a file's name: `intel-r-xeon-r-processor-family-6-model-207-2-cores`.
    pub fn file_name(&self) -> String {
        let lower = self.name.to_lowercase();
        let words: Vec<&str> =
            lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
        words.join("-")
    }
}

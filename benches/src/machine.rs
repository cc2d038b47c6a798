//! The machine that a result belongs to.

/// Name and size of a machine, as far as the system says.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Processor and number of cores, such as `Intel(R) Xeon(R) Processor, 2 cores`.
    pub name: String,
}

impl Machine {
    pub fn here() -> Self {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let processor = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        // Note: virtual machines often hide the model's name; family and model number tell
        // processors apart.
        let number = match (field("cpu family"), field("model\t")) {
            (Some(family), Some(model)) => format!(" (family {family}, model {model})"),
            _ => String::new(),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { name: format!("{processor}{number}, {cores} cores") }
    }

    /// The name as part of a file's name: `intel-r-xeon-r-processor-family-6-model-207-2-cores`.
    pub fn file_name(&self) -> String {
        let lower = self.name.to_lowercase();
        let words: Vec<&str> =
            lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty()).collect();
        words.join("-")
    }
}

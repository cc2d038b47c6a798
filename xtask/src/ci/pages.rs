//! The fenced blocks of a page, which steps run.

/// A fenced block: the words after its fence, and its lines.
pub struct Block<'a> {
    pub language: &'a str,
    pub lines: Vec<&'a str>,
}

impl<'a> Block<'a> {
    /// The name and the text of the file that a block is: its first line is a comment that names
    /// it. Other blocks are commands or remarks.
    pub fn file(&self) -> Option<(&'a str, String)> {
        let first = self.lines.first()?;
        let name = first.strip_prefix("// ").or(first.strip_prefix("# "))?;
        let is_name = std::path::Path::new(name).extension().is_some() && !name.contains(' ');
        let is_source = ["rust", "toml", "py", "sh"].contains(&self.language);
        let text = || self.lines[1..].join("\n").trim_start().to_owned() + "\n";
        (is_source && is_name).then(|| (name, text()))
    }
}

/// The blocks of `page`, in order.
pub fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let body = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push(Block { language, lines: body });
    }
    blocks
}

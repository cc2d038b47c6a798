//! stub
use crate::cli::JsonOutput;
use crate::error::Result;
/// stub
pub fn run(_json: &JsonOutput) -> Result<()> {
    Ok(())
}

//! Where a run took place: numbers mean little without it.

use std::fs;

use serde::Serialize;

use crate::transport::fabric;

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processors: usize,
    pub(crate) model: String,
    pub(crate) kernel: String,
    pub(crate) libfabric: String,
    /// Of the last minute, when the run began: above 0 others were at work.
    pub(crate) load: f64,
}

impl Machine {
    pub(crate) fn this() -> Self {
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            model: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            libfabric: fabric::version(),
            load: load().unwrap_or_default(),
        }
    }
}

/// What stands behind `name` and a colon in a file of such lines.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

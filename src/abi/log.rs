//! The `log` facade over libfabric's logging, controlled by `FI_LOG_LEVEL`, `FI_LOG_PROV` and
//! `FI_LOG_SUBSYS`. See [`fi_provider(3)`](https://ofiwg.github.io/libfabric/main/man/fi_provider.3.html).
//!
//! The target of a record selects libfabric's subsystem: one of the names in [`SUBSYSTEMS`], or the path of a
//! module of the crates below ([`MODULES`]). Any other target selects `core`. A record that is not enabled is
//! not formatted.

use std::ffi::CString;

use ::log::{Level, LevelFilter, Metadata, Record};

use super::cancel::Deferral;
use super::{provider, sys};

/// libfabric's subsystems in use, by their names in `FI_LOG_SUBSYS`.
const SUBSYSTEMS: [(&str, sys::fi_log_subsys); 8] = [
    ("core", sys::FI_LOG_CORE),
    ("fabric", sys::FI_LOG_FABRIC),
    ("domain", sys::FI_LOG_DOMAIN),
    ("ep_ctrl", sys::FI_LOG_EP_CTRL),
    ("ep_data", sys::FI_LOG_EP_DATA),
    ("cq", sys::FI_LOG_CQ),
    ("eq", sys::FI_LOG_EQ),
    ("mr", sys::FI_LOG_MR),
];

/// Subsystems of the crates below, whose records have module paths as targets. The first matching prefix
/// counts.
const MODULES: [(&str, sys::fi_log_subsys); 6] = [
    ("rdma_verbs::ibv::completion_queue", sys::FI_LOG_CQ),
    ("rdma_verbs::ibv::device", sys::FI_LOG_DOMAIN),
    ("rdma_verbs::ibv::memory", sys::FI_LOG_MR),
    ("rdma_verbs::ibv::post", sys::FI_LOG_EP_DATA),
    ("rdma_verbs", sys::FI_LOG_EP_CTRL),
    ("rstream_session", sys::FI_LOG_EP_DATA),
];

struct FabricLog;

/// Sends records to libfabric, from the first call on.
pub(super) fn start() {
    if ::log::set_logger(&FabricLog).is_ok() {
        ::log::set_max_level(wanted());
    }
}

/// The most detailed enabled level. A record of a more detailed level then costs one comparison. libfabric
/// determines its level before it loads providers.
fn wanted() -> LevelFilter {
    let read = |level: &Level| SUBSYSTEMS.iter().any(|&(_, subsystem)| enabled(*level, subsystem));
    [Level::Trace, Level::Debug, Level::Info, Level::Warn]
        .iter()
        .find(|level| read(level))
        .map_or(LevelFilter::Off, Level::to_level_filter)
}

fn enabled(level: Level, subsystem: sys::fi_log_subsys) -> bool {
    // SAFETY: the provider's struct is static and initialised.
    unsafe { sys::fi_log_enabled(provider::raw(), level_of(level), subsystem) != 0 }
}

/// libfabric has one level for errors and warnings.
fn level_of(level: Level) -> sys::fi_log_level {
    match level {
        Level::Error | Level::Warn => sys::FI_LOG_WARN,
        Level::Info => sys::FI_LOG_INFO,
        Level::Debug => sys::FI_LOG_DEBUG,
        Level::Trace => sys::FI_LOG_TRACE,
    }
}

fn subsystem_of(target: &str) -> sys::fi_log_subsys {
    let named = SUBSYSTEMS.iter().find(|(name, _)| *name == target);
    let found = named.or_else(|| MODULES.iter().find(|(module, _)| target.starts_with(module)));
    found.map_or(sys::FI_LOG_CORE, |&(_, subsystem)| subsystem)
}

impl ::log::Log for FabricLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        enabled(metadata.level(), subsystem_of(metadata.target()))
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let place = c_text(record.module_path().unwrap_or_default());
        let line = record.line().and_then(|line| i32::try_from(line).ok()).unwrap_or_default();
        let mut text = record.args().to_string();
        text.push('\n');
        let text = c_text(&text);
        let (level, subsystem) = (level_of(record.level()), subsystem_of(record.target()));
        // libfabric writes to standard error, and writing is a cancellation point.
        let _deferral = Deferral::begin();
        // SAFETY: the provider's struct is static and initialised; all texts are NUL-terminated and
        // live until the call returns; `%s` takes exactly the one argument that follows.
        unsafe {
            let provider = provider::raw();
            sys::fi_log(provider, level, subsystem, place.as_ptr(), line, c"%s".as_ptr(), text.as_ptr());
        }
    }

    fn flush(&self) {}
}

/// A text for C. NUL characters, which a peer's data may contain, are replaced.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_levels_map_to_libfabrics() {
        assert_eq!(subsystem_of("eq"), sys::FI_LOG_EQ);
        assert_eq!(subsystem_of("rdma_verbs::ibv::memory"), sys::FI_LOG_MR);
        assert_eq!(subsystem_of("rdma_verbs::iwarp::listener"), sys::FI_LOG_EP_CTRL);
        assert_eq!(subsystem_of("some_other_crate"), sys::FI_LOG_CORE);
        assert_eq!(level_of(Level::Error), level_of(Level::Warn));
        assert_eq!(level_of(Level::Debug), sys::FI_LOG_DEBUG);
    }

    #[test]
    fn text_with_nul_is_kept() {
        assert_eq!(c_text("a\0b").to_str().unwrap(), "a\u{fffd}b");
    }
}

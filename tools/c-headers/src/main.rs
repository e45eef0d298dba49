//! Writes the headers of the libraries with a C interface.
//!
//! ```text
//! c-headers             write those that are out of date
//! c-headers --check     fail if there are any
//! ```
//!
//! The headers are checked in, so that who builds or installs a library needs no generator.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// A header, and where it comes from.
struct Header {
    /// The folder of the package. Its `cbindgen.toml` says how the header is written.
    package: &'static str,
    /// The name of the header in `include`, without `.h`.
    name: &'static str,
    /// The sources that have its definitions, in its order.
    sources: &'static [&'static str],
}

const HEADERS: [Header; 3] = [
    Header { package: ".", name: "rstream", sources: &["src/abi/header.rs"] },
    Header {
        package: "crates/rdma-easy",
        name: "rdma_easy",
        sources: &[
            "src/ffi/errors.rs",
            "src/ffi/domain.rs",
            "src/ffi/region.rs",
            "src/ffi/connection.rs",
            "src/ffi/transfer.rs",
            "src/ffi/events.rs",
        ],
    },
    Header {
        package: "crates/rstream-c",
        name: "rstream_sockets",
        sources: &["src/attach.rs", "src/bytes.rs", "src/wait.rs", "src/options.rs"],
    },
];

fn main() -> ExitCode {
    let check = match std::env::args().skip(1).collect::<Vec<_>>().join(" ").as_str() {
        "" => false,
        "--check" => true,
        _ => {
            eprintln!("usage: c-headers [--check]");
            return ExitCode::from(2);
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let faults: Vec<String> =
        HEADERS.iter().filter_map(|header| header.bring_up_to_date(&root, check).err()).collect();
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Header {
    /// Writes the header if it is out of date. With `check` that is an error.
    fn bring_up_to_date(&self, root: &Path, check: bool) -> Result<(), String> {
        let package = root.join(self.package);
        let path = package.join("include").join(self.name).with_extension("h");
        let text = self.text(&package)?;
        if fs::read(&path).is_ok_and(|present| present == text) {
            return Ok(());
        }
        if check {
            return Err(format!("{}.h is out of date: write it anew by cargo run -p c-headers", self.name));
        }
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// What the sources give.
    fn text(&self, package: &Path) -> Result<Vec<u8>, String> {
        let config = cbindgen::Config::from_file(package.join("cbindgen.toml"))?;
        let builder = cbindgen::Builder::new().with_config(config);
        let builder =
            self.sources.iter().fold(builder, |builder, source| builder.with_src(package.join(source)));
        let bindings = builder.generate().map_err(|error| format!("{}.h: {error}", self.name))?;
        let mut text = Vec::new();
        bindings.write(&mut text);
        Ok(text)
    }
}

//! The dependency between the two modules of the provider: `src/abi` wraps libfabric's C types and uses
//! nothing else of this project but two types of memory, and `src/provider` uses no raw C types. Cargo checks
//! the dependencies between crates.

use std::fs;
use std::path::{Path, PathBuf};

/// For each module below `src`, the names that its code must not use.
const FORBIDDEN: [(&str, &[&str]); 2] = [
    ("abi", &["crate::provider", "rdma_easy", "rdma_verbs", "rdma_testkit", "rstream_"]),
    ("provider", &["libc::", "sys::", "std::os::raw", "ffi::c_"]),
];
/// Names of the public C header, which begin like those of this project's crates.
const HEADER_NAMES: [&str; 3] = ["rstream_stats", "rstream_endpoint_ops", "rstream_fi"];

/// The types of `rdma-verbs` that `abi` uses: it lends the application's memory, whose validity only the FFI
/// boundary can guarantee.
const LENT: [&str; 2] = ["pub use rdma_verbs::Memory;", "pub use rdma_verbs::Place;"];

/// Lines of code in `text` that use one of the `forbidden` names outside of string literals.
fn violations<'a>(text: &'a str, forbidden: &[&str]) -> Vec<&'a str> {
    let uses_one = |line: &&str| {
        let code = line.split("//").next().unwrap_or_default();
        let mut code: String = code.split('"').step_by(2).collect();
        HEADER_NAMES.iter().chain(&LENT).for_each(|name| code = code.replace(name, ""));
        forbidden.iter().any(|name| code.contains(name))
    };
    text.lines().filter(uses_one).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else {
            files.push(path);
        }
    }
    files
}

#[test]
fn the_modules_use_only_what_they_may() {
    for (module, forbidden) in FORBIDDEN {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(module);
        let mut files = sources(&root);
        assert!(files.len() > 10, "{module}: the sources were found");
        files.push(root.with_extension("rs"));
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            assert_eq!(violations(&text, forbidden), [""; 0], "{}", file.display());
        }
    }
}

#[test]
fn violations_are_found() {
    let (abi, provider) = (FORBIDDEN[0].1, FORBIDDEN[1].1);
    for line in [
        "use crate::provider::Endpoint;",
        "use rdma_verbs::Device;",
        "pub use rdma_verbs::MemoryRegion;",
        "pub use rdma_verbs::{Memory, Device};",
        "let place = rdma_verbs::Place::new(base, 4);",
    ] {
        assert_eq!(violations(line, abi), [line]);
    }
    assert_eq!(violations("pub use rdma_verbs::Memory;\npub use rdma_verbs::Place;", abi), [""; 0]);
    for line in ["let x = libc::EAGAIN;", "use crate::abi::sys::fi_info;", "use std::ffi::c_int;"] {
        assert_eq!(violations(line, provider), [line]);
    }
    assert_eq!(violations("// libc::EAGAIN\nuse std::ffi::CStr;", provider), [""; 0]);
    assert_eq!(violations("(\"rdma_verbs\", FI_LOG_EP_CTRL)", abi), [""; 0]);
    assert_eq!(violations("use super::header::rstream_stats;", abi), [""; 0]);
}

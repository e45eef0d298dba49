//! The rules between the modules hold: who may use whom, and where `unsafe` may stand.
//!
//! The rules are those of the table in the architecture notes. The check reads the source as
//! tokens, without comments and strings, resolves every path that begins in this crate (`crate::`,
//! `self::`, `super::`, groups of `use` included), and compares the module that it leads to with
//! what the module that it stands in may use. Modules that do not exist yet have nothing to break.

#[path = "layering/rules.rs"]
mod rules;
#[path = "layering/scan.rs"]
mod scan;

use std::fs;
use std::path::{Path, PathBuf};

use rules::{Violation, check_file, check_forbids};
use scan::tokens;

/// All source files: path below `src`, text.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path.strip_prefix(&root).unwrap().to_owned(), text));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn the_modules_keep_to_their_layers() {
    let files = sources();
    assert!(files.iter().any(|(path, _)| path.starts_with("verbs")), "the sources were found");
    let parsed: Vec<_> = files.iter().map(|(path, text)| (path.as_path(), tokens(text))).collect();
    let mut violations: Vec<Violation> = Vec::new();
    for (path, tokens) in &parsed {
        violations.extend(check_file(path, tokens));
    }
    violations.extend(check_forbids(&parsed));
    let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "the layering is broken:\n{}", list.join("\n"));
}

/// What the check of paths and of `unsafe` finds in one file, as text.
fn found_in(path: &str, text: &str) -> Vec<String> {
    check_file(Path::new(path), &tokens(text)).iter().map(ToString::to_string).collect()
}

/// What the check of `mod` lines finds in one file, as text.
fn not_forbidding(path: &str, text: &str) -> Vec<String> {
    check_forbids(&[(Path::new(path), tokens(text))]).iter().map(ToString::to_string).collect()
}

#[test]
fn paths_across_layers_are_found() {
    let bad = [
        ("stream/ring.rs", "use crate::verbs::Memory;"),
        ("stream/ring.rs", "use std::collections::VecDeque;"),
        ("stream/ring.rs", "fn f() -> ::std::time::Instant { todo!() }"),
        ("stream/ring.rs", "use libc::c_int;"),
        ("stream/ring.rs", "use core::sync::atomic::AtomicU32;"),
        ("stream/mod.rs", "use super::verbs::Memory;"),
        ("stream/deep/er.rs", "use super::super::super::provider;"),
        ("stream/deep/er.rs", "mod inner { use super::super::super::super::abi::X; }"),
        ("verbs/mod.rs", "use crate::stream;"),
        ("verbs/iwarp/mpa.rs", "fn f(x: crate::abi::Fid) {}"),
        ("verbs/iwarp/mpa.rs", "use crate::{verbs::Error, provider::Domain};"),
        ("verbs/iwarp/mpa.rs", "use crate::{self as root};"),
        ("verbs/iwarp/mpa.rs", "use crate::*;"),
        ("verbs/iwarp/mpa.rs", "use super::super::super::{stream::Ring};"),
        ("verbs/iwarp/mpa.rs", "use rdma_sys::ibv_context;"),
        ("verbs/tests.rs", "use crate::stream::Ring;"),
        ("abi/fid.rs", "use crate::provider::Endpoint;"),
        ("abi.rs", "use crate::verbs::Device;"),
        ("abi/ops/ep.rs", "use super::super::super::stream;"),
        ("provider/endpoint.rs", "let x = libc::EAGAIN;"),
        ("provider/endpoint.rs", "use crate::abi::sys::fi_info;"),
        ("provider/endpoint.rs", "use crate::abi::{Fid, sys};"),
        ("provider/endpoint.rs", "use std::ffi::c_int;"),
        ("provider/endpoint.rs", "use core::ffi::{CStr, c_void};"),
        ("provider/endpoint.rs", "use std::os::raw::c_char;"),
    ];
    for (path, text) in bad {
        assert_eq!(found_in(path, text).len(), 1, "{path}: {text}: {:?}", found_in(path, text));
    }
}

#[test]
fn paths_within_the_rules_pass() {
    let good = [
        (
            "stream/ring.rs",
            "use super::credits::Credits; use crate::stream::wire; use core::fmt; use alloc::vec;",
        ),
        (
            "stream/ring.rs",
            "// use std::io; crate::verbs\n/* crate::abi /* nested */ */ const S: &str = \"crate::verbs\";",
        ),
        (
            "stream/ring.rs",
            "const R: &str = r#\"use \"std::io\"; crate::abi\"#; const C: char = '\"'; fn f<'a>(x: &'a u8) {}",
        ),
        ("stream/ring/tests.rs", "use std::collections::VecDeque; use super::*;"),
        ("stream/ring.rs", "#[cfg(test)] mod tests { use std::vec::Vec; use super::super::credits; }"),
        ("verbs/mod.rs", "use std::io; pub(crate) use wait::WaitSet; pub(in crate::verbs) fn f() {}"),
        ("verbs/iwarp/mpa.rs", "use super::super::Error; use crate::verbs::{Error, memory::{self, Memory}};"),
        ("verbs/ibv/cm.rs", "use rdma_sys::ibv_context; unsafe fn f() {}"),
        ("abi/fid.rs", "use super::sys; use libc::c_int; unsafe { f() }"),
        ("provider/endpoint.rs", "use crate::{abi::Fid, stream::Ring, verbs::Device}; use std::ffi::CStr;"),
        ("lib.rs", "use crate::provider::X; #[unsafe(no_mangle)] pub extern \"C\" fn fi_prov_ini() {}"),
    ];
    for (path, text) in good {
        assert_eq!(found_in(path, text), [""; 0], "{path}: {text}");
    }
}

#[test]
fn unsafe_is_found_where_it_may_not_stand() {
    for path in ["stream/ring.rs", "verbs/wait.rs", "verbs/iwarp/mod.rs", "provider/mod.rs", "lib.rs"] {
        assert_eq!(found_in(path, "fn f() { unsafe { g() } }").len(), 1, "{path}");
        assert_eq!(found_in(path, "#[cfg(test)] mod tests { unsafe impl Send for X {} }").len(), 1, "{path}");
        assert_eq!(found_in(path, "#[deny(unsafe_code)] // unsafe\nfn f() {}"), [""; 0], "{path}");
    }
    for path in ["abi/fid.rs", "abi.rs", "verbs/memory.rs", "verbs/ibv/mod.rs", "verbs/shm/ring.rs"] {
        assert_eq!(found_in(path, "fn f() { unsafe { g() } }"), [""; 0], "{path}");
    }
    assert_eq!(found_in("verbs/memory_pool.rs", "unsafe fn f() {}").len(), 1, "a prefix is not the module");
    assert_eq!(found_in("provider/x.rs", "#[unsafe(no_mangle)] fn f() {}").len(), 1, "only the root exports");
}

#[test]
fn modules_that_do_not_forbid_unsafe_are_found() {
    let bad = [
        ("lib.rs", "mod stream;"),
        ("lib.rs", "#[cfg(test)] #[deny(unsafe_code)] pub(crate) mod stream;"),
        ("lib.rs", "#[forbid(missing_docs)] mod provider;"),
        ("verbs/mod.rs", "/// Text.\n#[forbid(unsafe_code)] mod wait; mod error;"),
        ("verbs/mod.rs", "#[cfg(test)] mod tests { fn f() {} }"),
    ];
    for (path, text) in bad {
        assert_eq!(not_forbidding(path, text).len(), 1, "{path}: {text}: {:?}", not_forbidding(path, text));
    }
    let good = [
        ("lib.rs", "mod abi; pub mod verbs; #[forbid(unsafe_code)] mod stream;"),
        ("lib.rs", "#[doc(hidden)] #[forbid(unsafe_code, missing_docs)] #[cfg(x)] pub(crate) mod provider;"),
        ("verbs/mod.rs", "mod ibv; pub mod memory; #[forbid(unsafe_code)] mod error;"),
        ("verbs/memory.rs", "#[cfg(test)] mod tests {}"),
    ];
    for (path, text) in good {
        assert_eq!(not_forbidding(path, text), [""; 0], "{path}: {text}");
    }
}

#[test]
fn a_forbidding_module_covers_what_is_below_it() {
    let files = [
        (Path::new("lib.rs"), tokens("#[forbid(unsafe_code)] mod stream; mod verbs;")),
        (Path::new("stream/mod.rs"), tokens("mod ring; mod wire { mod words; }")),
        (Path::new("verbs/mod.rs"), tokens("mod iwarp;")),
        (Path::new("verbs/iwarp/mod.rs"), tokens("#![forbid(unsafe_code)] mod mpa;")),
    ];
    let violations: Vec<String> = check_forbids(&files).iter().map(ToString::to_string).collect();
    assert_eq!(violations, [""; 0]);
    let without = [files[2].clone(), (files[3].0, tokens("mod mpa;"))];
    let violations: Vec<String> = check_forbids(&without).iter().map(ToString::to_string).collect();
    assert_eq!(violations.len(), 2, "{violations:?}");
    assert!(violations[0].contains("verbs/mod.rs:1") && violations[0].contains("iwarp"), "{violations:?}");
}

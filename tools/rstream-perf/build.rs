//! Generates the Rust view of what an application includes of libfabric, and links it.

use std::env;
use std::path::{Path, PathBuf};

use bindgen::callbacks::{EnumVariantCustomBehavior, EnumVariantValue, IntKind, ParseCallbacks};

/// `rstream.h` comes last, as in a C application.
const HEADERS: &[&str] = &[
    "rdma/fabric.h",
    "rdma/fi_cm.h",
    "rdma/fi_domain.h",
    "rdma/fi_endpoint.h",
    "rdma/fi_eq.h",
    "rdma/fi_rma.h",
    "rstream.h",
];

/// Everything that is called, inline functions of the headers included.
const FUNCTIONS: &str = "fi_(accept|allocinfo|close|connect|control|cq_open|cq_read|cq_readerr|domain|enable|\
     endpoint|ep_bind|eq_open|eq_readerr|eq_sread|fabric|freeinfo|getinfo|getname|listen|mr_desc|mr_key|mr_reg|\
     passive_ep|pep_bind|read|recv|send|setopt|shutdown|strerror|trywait|version|write)";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../include/rstream.h");
    let library = pkg_config::Config::new().atleast_version("1.17").probe("libfabric");
    let library = library.unwrap_or_else(|error| panic!("libfabric 1.17 or later is needed: {error}"));
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let target = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut folders = library.include_paths;
    folders.push(root.join("../../include"));
    generate_bindings(&folders, &target);
    cc::Build::new()
        .file(target.join("inline.c"))
        .includes(&folders)
        .warnings(false)
        .compile("fabric_inline");
}

/// Writes `bindings.rs`, and `inline.c` with a function to link for each inline one.
fn generate_bindings(folders: &[PathBuf], target: &Path) {
    let include_lines: String = HEADERS.iter().map(|name| format!("#include <{name}>\n")).collect();
    let header = target.join("libfabric.h");
    std::fs::write(&header, include_lines).expect("the build folder can be written");
    bindgen::Builder::default()
        .header(header.to_str().expect("the build folder's name is text"))
        .clang_args(folders.iter().map(|folder| format!("-I{}", folder.display())))
        .parse_callbacks(Box::new(ConstantTypes))
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .wrap_static_fns(true)
        .wrap_static_fns_path(target.join("inline.c"))
        .allowlist_function(FUNCTIONS)
        .allowlist_type("fi_(cq_msg_entry|eq_cm_entry|eq_err_entry)")
        .allowlist_var("FI_.*")
        // A value that this version does not name must be representable: never a Rust enum.
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .wrap_unsafe_ops(true)
        .layout_tests(false)
        .generate_comments(false)
        .generate()
        .expect("libfabric's headers can be read")
        .write_to_file(target.join("bindings.rs"))
        .expect("the build folder can be written");
}

/// Gives macros the type of what they are passed as, and takes the endpoint's type from `rstream.h`.
#[derive(Debug)]
struct ConstantTypes;

impl ParseCallbacks for ConstantTypes {
    fn enum_variant_behavior(
        &self,
        _enumeration: Option<&str>,
        name: &str,
        _value: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        (name == "FI_EP_SOCK_STREAM").then_some(EnumVariantCustomBehavior::Hide)
    }

    fn int_macro(&self, name: &str, value: i64) -> Option<IntKind> {
        // Some flags begin with an E as well, but all of them are above the error numbers.
        let error = name.starts_with("FI_E") && (1..256).contains(&value) && !name.starts_with("FI_EP_");
        Some(match name {
            _ if error => IntKind::I32,
            _ if name.starts_with("FI_EP_") || name.ends_with("_VERSION") => IntKind::U32,
            _ => IntKind::U64,
        })
    }
}

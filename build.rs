//! Generates the Rust view of libfabric's headers, and links libfabric.
//!
//! The headers are those that pkg-config names, or those in the folder `LIBFABRIC_INCLUDE` (the
//! one that has `rdma/fabric.h`), so that other versions can be tried without installing them.

use std::env;
use std::path::{Path, PathBuf};

use bindgen::callbacks::{EnumVariantCustomBehavior, EnumVariantValue, IntKind, ParseCallbacks};

/// The headers that a provider needs; each C op struct is in one of them.
const HEADERS: &[&str] = &[
    "rdma/fabric.h",
    "rdma/fi_errno.h",
    "rdma/fi_endpoint.h",
    "rdma/fi_cm.h",
    "rdma/fi_eq.h",
    "rdma/fi_domain.h",
    "rdma/fi_rma.h",
    "rdma/fi_tagged.h",
    "rdma/fi_atomic.h",
    "rdma/fi_collective.h",
    "rdma/providers/fi_prov.h",
    "rdma/providers/fi_log.h",
];

/// Everything that is called. All of it is public and has been in libfabric since its first ABI.
const FUNCTIONS: &str = "fi_(dupinfo|freeinfo|log|log_enabled|param_define|param_get|version|strerror)";

/// The structs behind a fid, their op tables, and what is passed in calls.
const TYPES: &str = "fid(_.*)?|fi_ops(_.*)?|fi_(info|provider|context|msg|msg_rma|eq_attr|\
     eq_entry|eq_cm_entry|eq_err_entry|wait_obj|cq_attr|cq_(msg_|data_|tagged_|err_)?entry|cntr_attr|mr_attr|\
     log_level|log_subsys|param_type)";

/// Macros that not every version of the headers has, or of another type. `sys.rs` defines them.
const ELSEWHERE: &str = "FI_(LOCAL_MR|MR_BASIC|MR_DMABUF|MR_SCALABLE|ORDER_STRICT|PRIORITY|SHARED_CONTEXT)";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBFABRIC_INCLUDE");
    let library = pkg_config::Config::new().atleast_version("1.17").probe("libfabric");
    let library = library.unwrap_or_else(|error| panic!("libfabric 1.17 or later is needed: {error}"));
    let folders = match env::var_os("LIBFABRIC_INCLUDE") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => library.include_paths,
    };
    generate_bindings(&folders);
    // libfabric unloads its providers when the process exits; threads of the application may still
    // be in a call of ours then, or end later and run our thread-local destructors.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

/// Writes `bindings.rs`, which `src/abi/sys.rs` includes.
fn generate_bindings(folders: &[PathBuf]) {
    let include_lines: String = HEADERS.iter().map(|name| format!("#include <{name}>\n")).collect();
    let target = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    bindgen::Builder::default()
        .header_contents("libfabric.h", &include_lines)
        .clang_args(folders.iter().map(|folder| format!("-I{}", folder.display())))
        .parse_callbacks(Box::new(ConstantTypes))
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .allowlist_function(FUNCTIONS)
        .allowlist_type(TYPES)
        .allowlist_var("FI_.*")
        // The macro of newer headers; the enumerator of older ones is hidden by `ConstantTypes`.
        .blocklist_item("FI_EP_SOCK_.*")
        .blocklist_item(ELSEWHERE)
        .blocklist_type("iovec")
        .raw_line("use libc::iovec;")
        // A value that this version does not name must be representable: never a Rust enum.
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .layout_tests(false)
        .generate_comments(false)
        .generate()
        .expect("libfabric's headers can be read")
        .write_to_file(Path::new(&target).join("bindings.rs"))
        .expect("the build folder can be written");
}

/// Gives macros the type of the structure fields that they go into, and leaves out what not every
/// version of the headers has with the same value.
#[derive(Debug)]
struct ConstantTypes;

impl ParseCallbacks for ConstantTypes {
    fn enum_variant_behavior(
        &self,
        _enumeration: Option<&str>,
        name: &str,
        _value: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        // Defined in `header.rs` and `sys.rs`.
        let elsewhere = name.starts_with("FI_EP_SOCK_") || name == "FI_SOCKADDR_IP";
        elsewhere.then_some(EnumVariantCustomBehavior::Hide)
    }

    fn int_macro(&self, name: &str, value: i64) -> Option<IntKind> {
        let name = name.strip_prefix("FI_")?;
        let mr_mode = name.starts_with("MR_") && i32::try_from(value).is_ok();
        // Some flags begin with an E as well, but all of them are above the error numbers.
        let errno = name.starts_with('E') && (1..256).contains(&value);
        Some(match name {
            _ if mr_mode || errno => IntKind::I32,
            _ if name.ends_with("_VERSION") => IntKind::U32,
            _ => IntKind::U64,
        })
    }
}

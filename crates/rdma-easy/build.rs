//! Writes the C header and the pkg-config file.
//!
//! The header, `include/rdma_easy.h`, is checked in: it is written only if it differs. The pkg-config file,
//! `rdma_easy.pc`, goes to the folder of the library. Its prefix is `/usr/local`, or what the variable
//! `RDMA_EASY_PREFIX` names.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The sources that have the definitions of the header, in its order.
const SOURCES: [&str; 6] = ["errors", "domain", "region", "connection", "transfer", "events"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RDMA_EASY_PREFIX");
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    write_header(&root);
    // The folder of the library is two above that of this package's output, which is OUT_DIR's.
    let target = PathBuf::from(variable("OUT_DIR"));
    if let Some(folder) = target.ancestors().nth(3) {
        fs::write(folder.join("rdma_easy.pc"), pkg_config()).expect("the build folder can be written");
    }
    // Threads of the program may be in a call, or end and run destructors of this library, after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

fn write_header(root: &Path) {
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rerun-if-changed=include/rdma_easy.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in SOURCES {
        let source = format!("src/ffi/{name}.rs");
        println!("cargo:rerun-if-changed={source}");
        builder = builder.with_src(root.join(source));
    }
    let mut text = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut text);
    let target = root.join("include/rdma_easy.h");
    if fs::read(&target).is_ok_and(|present| present == text) {
        return;
    }
    if let Err(error) = fs::write(&target, &text) {
        println!("cargo:warning=include/rdma_easy.h is out of date and cannot be written: {error}");
    }
}

fn pkg_config() -> String {
    let prefix = env::var("RDMA_EASY_PREFIX").unwrap_or_else(|_| "/usr/local".to_owned());
    let (description, version) = (variable("CARGO_PKG_DESCRIPTION"), variable("CARGO_PKG_VERSION"));
    format!(
        "prefix={prefix}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: rdma_easy\n\
         Description: {description}\n\
         Version: {version}\n\
         Libs: -L${{libdir}} -lrdma_easy\n\
         Cflags: -I${{includedir}}\n"
    )
}

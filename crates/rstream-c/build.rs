//! Writes the C header and the pkg-config file.
//!
//! The header, `include/rstream_sockets.h`, is checked in: it is written only if it differs. The pkg-config file,
//! `rstream_sockets.pc`, goes to the folder of the library. Its prefix is `/usr/local`, or what the variable
//! `RSTREAM_PREFIX` names.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The sources that have the definitions of the header, in its order.
const SOURCES: [&str; 4] = ["attach", "bytes", "wait", "options"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RSTREAM_PREFIX");
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    write_header(&root);
    // The folder of the library is two above that of this package's output, which is OUT_DIR's.
    let target = PathBuf::from(variable("OUT_DIR"));
    if let Some(folder) = target.ancestors().nth(3) {
        fs::write(folder.join("rstream_sockets.pc"), pkg_config()).expect("the build folder can be written");
    }
    // It is called before each fork, and when threads end, also after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

fn write_header(root: &Path) {
    println!("cargo:rerun-if-changed=cbindgen.toml");
    println!("cargo:rerun-if-changed=include/rstream_sockets.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in SOURCES {
        let source = format!("src/{name}.rs");
        println!("cargo:rerun-if-changed={source}");
        builder = builder.with_src(root.join(source));
    }
    let mut text = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut text);
    let target = root.join("include/rstream_sockets.h");
    if fs::read(&target).is_ok_and(|present| present == text) {
        return;
    }
    if let Err(error) = fs::write(&target, &text) {
        println!("cargo:warning=include/rstream_sockets.h is out of date and cannot be written: {error}");
    }
}

fn pkg_config() -> String {
    let prefix = env::var("RSTREAM_PREFIX").unwrap_or_else(|_| "/usr/local".to_owned());
    let (description, version) = (variable("CARGO_PKG_DESCRIPTION"), variable("CARGO_PKG_VERSION"));
    format!(
        "prefix={prefix}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: rstream_sockets\n\
         Description: {description}\n\
         Version: {version}\n\
         Libs: -L${{libdir}} -lrstream_c\n\
         Cflags: -I${{includedir}}\n"
    )
}

//! For build scripts of libraries with a C interface: the pkg-config file.
//!
//! As usual in build scripts, what cannot be done panics with the reason.

#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs};

/// Writes `{name}.pc`, which describes this package as the library `lib{library}.so`, to the folder of the library.
/// Its prefix is what the environment variable `prefix` names, or `/usr/local`.
pub fn write_pkg_config(name: &str, library: &str, prefix: &str) {
    println!("cargo:rerun-if-env-changed={prefix}");
    let prefix = env::var(prefix).unwrap_or_else(|_| "/usr/local".to_owned());
    let (description, version) = (variable("CARGO_PKG_DESCRIPTION"), variable("CARGO_PKG_VERSION"));
    let text = format!(
        "prefix={prefix}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: {name}\n\
         Description: {description}\n\
         Version: {version}\n\
         Libs: -L${{libdir}} -l{library}\n\
         Cflags: -I${{includedir}}\n"
    );
    // The folder of the library is two above that of this package's output, which is OUT_DIR's.
    let output = variable("OUT_DIR");
    if let Some(folder) = Path::new(&output).ancestors().nth(3) {
        fs::write(folder.join(format!("{name}.pc")), text).expect("the build folder can be written");
    }
}

/// A variable that cargo sets for build scripts.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

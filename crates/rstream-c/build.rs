//! Writes the C header and the pkg-config file.

/// The sources that have the definitions of the header, in its order.
const SOURCES: [&str; 4] = ["src/attach.rs", "src/bytes.rs", "src/wait.rs", "src/options.rs"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    c_library_build::write_header("rstream_sockets", &SOURCES);
    c_library_build::write_pkg_config("rstream_sockets", "rstream_c", "RSTREAM_PREFIX");
    // It is called before each fork, and when threads end, also after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

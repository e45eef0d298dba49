//! Writes the C header and the pkg-config file.

/// The sources that have the definitions of the header, in its order.
const SOURCES: [&str; 6] = [
    "src/ffi/errors.rs",
    "src/ffi/domain.rs",
    "src/ffi/region.rs",
    "src/ffi/connection.rs",
    "src/ffi/transfer.rs",
    "src/ffi/events.rs",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    c_library_build::write_header("rdma_easy", &SOURCES);
    c_library_build::write_pkg_config("rdma_easy", "rdma_easy", "RDMA_EASY_PREFIX");
    // Threads of the program may be in a call, or end and run destructors of this library, after dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

//! `rping` of rdma-core on the verbs core, with the embedded iWARP device: either side understands the other
//! program's other side, on a host with or without RDMA devices.
//!
//! ```text
//! rping -s [-a ADDRESS] [-p PORT] [-C COUNT] [-S SIZE] [-v] [--crc] [--wrong-key]
//! rping -c  -a ADDRESS  [-p PORT] [-C COUNT] [-S SIZE] [-v] [-V] [--crc] [--mpa-revision 1|2] [--greet]
//!       [--wrong-key]
//! ```
//!
//! A ping: the client tells where its text lies (a send), the server fetches it (an RDMA read) and says so;
//! the client tells where the text may come back to, the server puts it there (an RDMA write) and says so.
//! `-V` has the client compare. `--greet` is a send there and one back instead, which rdma-core's
//! `rdma_server` answers. With `--wrong-key` the memory is named by a key that names nothing: the connection
//! has to end with an error.

mod client;
mod options;
mod server;
mod word;

use std::error::Error;
use std::process::ExitCode;

use rdma_verbs::iwarp;

use options::{Options, Role};

fn main() -> ExitCode {
    match Options::from_arguments().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rping: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = iwarp::Device::new(options.device)?;
    match options.role {
        Role::Client => client::run(device, options),
        Role::Server => server::run(device, options),
    }
}

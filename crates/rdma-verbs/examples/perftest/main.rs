//! The other side of perftest's bandwidth programs, on the verbs core with the embedded iWARP device:
//! `ib_send_bw`, `ib_write_bw` and `ib_read_bw`, all with `-R`, on the kernel's soft iWARP or on iWARP
//! hardware.
//!
//! ```text
//! perftest -s -t send|write|read [-a ADDRESS] [-p PORT] [-n COUNT] [-S SIZE] [--crc]
//! perftest -c -t send|write|read  -a ADDRESS  [-p PORT] [-n COUNT] [-S SIZE] [--crc]
//! ```
//!
//! COUNT and SIZE must be the other program's `-n` and `-s`. There are two connections to one port: over the
//! first the sides tell each other by sends what they need to know (`control`), over the second goes the
//! traffic (`traffic`).

mod control;
mod options;
mod traffic;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use rdma_verbs::iwarp;

use control::Control;
use options::{Options, Role, Test};
use traffic::Traffic;

fn main() -> ExitCode {
    match Options::from_arguments().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one piece: the peer may write to the same terminal.
            let line = format!("perftest: {error}\n");
            eprint!("{line}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let device = || iwarp::Device::new(options.device);
    let mut control = Control::open(device()?, options)?;
    control.introduce()?;
    let mut traffic = match options.role {
        Role::Server => {
            let mut traffic = Traffic::listen(device()?, options)?;
            control.sync()?;
            traffic.accept()?;
            traffic
        }
        Role::Client => {
            control.sync()?;
            Traffic::connect(device, options)?
        }
    };
    control.sync()?;
    control.offer(traffic.memory());
    let memory = control.sync()?;
    control.sync()?;
    control.sync()?;
    let start = Instant::now();
    match (options.test, options.role) {
        (Test::Send, Role::Client) => {
            control.sync()?;
            traffic.send(options)?;
        }
        (Test::Send, Role::Server) => {
            traffic.post_receives(options)?;
            control.sync()?;
            traffic.receive(memory, options)?;
        }
        (Test::Write, Role::Client) => traffic.write(memory, options)?,
        (Test::Read, Role::Client) => traffic.read(memory, options)?,
        (Test::Write | Test::Read, Role::Server) => traffic.serve(&mut control)?,
    }
    let seconds = start.elapsed().as_secs_f64();
    if options.test != Test::Send {
        // The side that is written or read learns here that it is over.
        control.sync()?;
        control.exchange_reports(options, seconds)?;
    }
    control.sync()?;
    if options.role == Role::Client {
        println!("{} messages of {} bytes in {seconds:.3} s", options.count, options.size);
    }
    traffic.check(options)?;
    Ok(traffic.finish(options)?)
}

//! Drivers in the runtimes that a feature names.

#[cfg(feature = "async-io")]
pub use self::async_io::AsyncIo;
#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;

#[cfg(feature = "tokio")]
mod tokio {
    use std::io;
    use std::task::{Context, Poll, ready};

    use ::tokio::io::Interest;
    use ::tokio::io::unix::AsyncFd;

    use crate::typed::{Descriptor, Driver, Readiness, Result, Shard, TrustedDevice};

    /// A descriptor in a runtime of tokio.
    #[derive(Debug)]
    pub struct Tokio(AsyncFd<Descriptor>);

    impl<D: TrustedDevice> Shard<D> {
        /// A driver for the current runtime of tokio, which has to have its I/O enabled: spawn it, or join it
        /// with other futures.
        ///
        /// # Errors
        /// The system's.
        ///
        /// # Panics
        /// Outside a runtime of tokio, or if its I/O is disabled.
        pub fn tokio_driver(&self) -> Result<Driver<D, Tokio>> {
            // What replaces it is unsafe, because a descriptor could change or close. This one does not.
            #[allow(deprecated, reason = "older versions of tokio have no other")]
            let register = AsyncFd::with_interest;
            Driver::new(self, |descriptor| register(descriptor, Interest::READABLE).map(Tokio))
        }
    }

    impl Readiness for Tokio {
        fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            // Tokio waits for edges. It keeps one that comes after this was ready.
            ready!(self.0.poll_read_ready(context))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }
}

#[cfg(feature = "async-io")]
mod async_io {
    use std::io;
    use std::task::{Context, Poll};

    use ::async_io::Async;

    use crate::typed::{Descriptor, Driver, Readiness, Result, Shard, TrustedDevice};

    /// A descriptor in the reactor of async-io, which smol and async-std use.
    #[derive(Debug)]
    pub struct AsyncIo(Async<Descriptor>);

    impl<D: TrustedDevice> Shard<D> {
        /// A driver for the reactor of async-io: spawn it, or join it with other futures.
        ///
        /// # Errors
        /// The system's.
        pub fn async_io_driver(&self) -> Result<Driver<D, AsyncIo>> {
            // The descriptor of a wait set does not block.
            Driver::new(self, |descriptor| Async::new_nonblocking(descriptor).map(AsyncIo))
        }
    }

    impl Readiness for AsyncIo {
        fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.0.poll_readable(context)
        }
    }
}

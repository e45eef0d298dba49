//! The two directions of a stream, for two futures or two tasks.

use std::error::Error;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::TcpStream;

/// What [`TcpStream::split`] gives to read from.
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// What [`TcpStream::split`] gives to write to.
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// What [`TcpStream::into_split`] gives to read from.
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// What [`TcpStream::into_split`] gives to write to. The output ends when it is dropped.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<TcpStream>,
    ends_output: bool,
}

/// The halves are of different streams.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

pub(super) fn split(stream: &mut TcpStream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf(stream), WriteHalf(stream))
}

pub(super) fn split_owned(stream: Arc<TcpStream>) -> (OwnedReadHalf, OwnedWriteHalf) {
    (OwnedReadHalf(Arc::clone(&stream)), OwnedWriteHalf { stream, ends_output: true })
}

impl OwnedReadHalf {
    /// The whole stream again.
    ///
    /// # Errors
    /// Both halves, if they are of different streams.
    #[expect(clippy::unreachable, reason = "nothing else refers to the stream")]
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.0, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        other.forget();
        Arc::try_unwrap(self.0).map_err(|_| unreachable!("a stream has two halves"))
    }
}

impl OwnedWriteHalf {
    /// The whole stream again.
    ///
    /// # Errors
    /// Both halves, if they are of different streams.
    pub fn reunite(self, other: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        other.reunite(self)
    }

    /// Drops it without ending the output.
    pub fn forget(mut self) {
        self.ends_output = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.ends_output {
            let _ = self.stream.end_output();
        }
    }
}

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of different streams")
    }
}

impl Error for ReuniteError {}

impl AsRef<TcpStream> for ReadHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for WriteHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for OwnedReadHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.0
    }
}

impl AsRef<TcpStream> for OwnedWriteHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

/// What is the same for both kinds of halves.
macro_rules! halves {
    ($read:ty, $write:ty) => {
        impl $read {
            /// [`TcpStream::peek`].
            ///
            /// # Errors
            /// What the system says.
            pub async fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.as_ref().peek(buffer).await
            }

            /// [`TcpStream::readable`].
            ///
            /// # Errors
            /// What the system says.
            pub async fn readable(&self) -> io::Result<()> {
                self.as_ref().readable().await
            }

            /// [`TcpStream::try_read`].
            ///
            /// # Errors
            /// As there.
            pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                self.as_ref().try_read(buffer)
            }
        }

        impl $write {
            /// [`TcpStream::writable`].
            ///
            /// # Errors
            /// What the system says.
            pub async fn writable(&self) -> io::Result<()> {
                self.as_ref().writable().await
            }

            /// [`TcpStream::try_write`].
            ///
            /// # Errors
            /// As there.
            pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                self.as_ref().try_write(bytes)
            }
        }

        impl AsyncRead for $read {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                (*self).as_ref().poll_read_shared(cx, buffer)
            }
        }

        impl AsyncWrite for $write {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                (*self).as_ref().poll_write_shared(cx, &[IoSlice::new(bytes)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                (*self).as_ref().poll_write_shared(cx, slices)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready((*self).as_ref().end_output())
            }
        }
    };
}

halves!(ReadHalf<'_>, WriteHalf<'_>);
halves!(OwnedReadHalf, OwnedWriteHalf);

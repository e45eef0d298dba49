//! TLS over the streams, by a library that knows nothing of them.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{check, values};
use rstream_net::Path;
use rstream_net::tokio::{TcpListener, TcpStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

const LIMIT: Duration = Duration::from_secs(60);
/// More than both rings and the sockets hold.
const LARGE: u64 = 8 << 20;
const NAME: &str = "here.example";

/// A server with a certificate of its own, and a client that trusts it.
fn configurations() -> (TlsAcceptor, TlsConnector) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let certificate = CertificateDer::from(cert);
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let mut trusted = RootCertStore::empty();
    trusted.add(certificate.clone()).unwrap();
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key.into()).unwrap();
    let client = ClientConfig::builder().with_root_certificates(trusted).with_no_client_auth();
    (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)))
}

async fn write_all(mut output: impl AsyncWrite + Unpin) {
    let mut wrote = 0;
    while wrote < LARGE {
        let bytes = values(wrote, 100_000.min((LARGE - wrote) as usize));
        output.write_all(&bytes).await.unwrap();
        wrote += bytes.len() as u64;
    }
    // The alert `close_notify`, and the end of the stream.
    output.shutdown().await.unwrap();
}

/// Reads to the end, which is an error without `close_notify`.
async fn read_all(mut input: impl AsyncRead + Unpin) -> u64 {
    let (mut read, mut buffer) = (0, vec![0; 50_000]);
    loop {
        match input.read(&mut buffer).await.unwrap() {
            0 => return read,
            length => {
                check(read, &buffer[..length]);
                read += length as u64;
            }
        }
    }
}

/// One end: a dialogue, which the client begins, then all at once in both directions.
async fn talk(mut end: TlsStream<TcpStream>, begins: bool) -> Path {
    for turn in 0..40 {
        if (turn % 2 == 0) == begins {
            end.write_all(&values(turn, 100)).await.unwrap();
            end.flush().await.unwrap();
        } else {
            let mut message = [0; 100];
            end.read_exact(&mut message).await.unwrap();
            check(turn, &message);
        }
    }
    let (mut input, mut output) = split(end);
    let writer = tokio::spawn(async move {
        write_all(&mut output).await;
        output
    });
    assert_eq!(read_all(&mut input).await, LARGE);
    input.unsplit(writer.await.unwrap()).get_ref().0.path()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_moves_to_shared_memory() {
    let (acceptor, connector) = configurations();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let stream = listener.accept().await.unwrap().0;
        talk(acceptor.accept(stream).await.unwrap().into(), false).await
    });
    let stream = TcpStream::connect(address).await.unwrap();
    let client = connector.connect(ServerName::try_from(NAME).unwrap(), stream).await.unwrap();
    assert_eq!(client.get_ref().0.path(), Path::Tcp("not yet"));
    assert_eq!(timeout(LIMIT, talk(client.into(), true)).await.unwrap(), Path::SharedMemory);
    assert_eq!(timeout(LIMIT, server).await.unwrap().unwrap(), Path::SharedMemory);
}

/// A client that does not trust the server breaks off, and the server learns of it.
#[tokio::test]
async fn a_stranger_is_refused() {
    let ((acceptor, _), (_, connector)) = (configurations(), configurations());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = async {
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect(ServerName::try_from(NAME).unwrap(), stream).await.is_err()
    };
    let server = async { acceptor.accept(listener.accept().await.unwrap().0).await.is_err() };
    assert_eq!(timeout(LIMIT, async { tokio::join!(client, server) }).await.unwrap(), (true, true));
}

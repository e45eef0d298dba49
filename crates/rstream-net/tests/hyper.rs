//! HTTP over the streams, by a library that knows nothing of them.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};
use hyper_util::rt::TokioIo;
use rstream_net::Path;
use rstream_net::tokio::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Ok(Response::new(Full::new(body)))
}

/// Sends requests over one connection, of which each is answered with its body. Returns the stream.
async fn ask(stream: TcpStream, requests: usize) -> TcpStream {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection.without_shutdown());
    for number in 0..requests {
        let body = vec![number as u8; [10, 3000, 1 << 20][number % 3]];
        let request = Request::post("/").header("host", "here").body(Full::new(Bytes::from(body.clone())));
        let answer = sender.send_request(request.unwrap()).await.unwrap();
        assert!(answer.status().is_success());
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), body);
    }
    drop(sender);
    connection.await.unwrap().unwrap().io.into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let stream = TokioIo::new(listener.accept().await.unwrap().0);
            tokio::spawn(server::conn::http1::Builder::new().serve_connection(stream, service_fn(echo)));
        }
    });
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        clients.spawn(async move { ask(TcpStream::connect(address).await.unwrap(), 60).await.path() });
    }
    let paths = timeout(Duration::from_secs(60), clients.join_all()).await.unwrap();
    assert!(paths.iter().all(|&path| path == Path::SharedMemory), "{paths:?}");
    server.abort();
}

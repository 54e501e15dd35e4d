//! The byte stream under HTTP/2: TCP or a unix socket, plain or TLS, the first bytes looked at.
//!
//! ```text
//! first bytes   0x16…                    → TLS (unless off), then look again inside
//!               PRI * HTTP/2.0…          → HTTP/2
//!               GET /, POST /, …         → HTTP/1: a short 400 and goodbye
//!               anything else            → goodbye
//! ```

use crate::authority::Repair;
use crate::config::TlsMode;
use crate::given_up::Resets;
use crate::inbox::ConnectionFacts;
use crate::statistics::{Statistics, up};
use bytes::{Buf, Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const TLS_HANDSHAKE: u8 = 0x16;
/// Read at once; then it is the turn of other connections, and of what this one's streams have brought.
const READ_PER_TURN: u64 = 64 << 10;
const METHODS: [&[u8]; 9] =
    [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"CONNECT ", b"TRACE "];
const HTTP1_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 57\r\n\
connection: close\r\n\r\nThis port speaks gRPC: HTTP/2 with prior knowledge, only\n";
// SETTINGS (empty), then GOAWAY: last stream 0, INADEQUATE_SECURITY, a word to whoever reads it.
const TLS_REQUIRED: &[u8] =
    b"\0\0\0\x04\0\0\0\0\0\0\0\x24\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0cthis port requires TLS, 1.2+";

/// An accepted socket.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What went over a connection, for its own watch and for the statistics.
pub(crate) struct Traffic {
    pub(crate) read: Cell<u64>,
    /// Of that, in turns that are over.
    read_before: Cell<u64>,
    resets: RefCell<Resets>,
    statistics: Arc<Statistics>,
}

impl Traffic {
    pub(crate) fn new(statistics: Arc<Statistics>, resets: Resets) -> Rc<Self> {
        Rc::new(Self {
            read: Cell::new(0),
            read_before: Cell::new(0),
            resets: RefCell::new(resets),
            statistics,
        })
    }

    /// It may read on.
    pub(crate) fn begin_turn(&self) {
        self.read_before.set(self.read.get());
    }

    fn has_had_its_turn(&self) -> bool {
        self.read.get().wrapping_sub(self.read_before.get()) >= READ_PER_TURN
    }
}

/// A stream some bytes of which were read already.
struct Replayed<S> {
    first: Bytes,
    inner: S,
}

enum Layer {
    Plain(Socket),
    Tls(Box<TlsStream<Replayed<Socket>>>),
}

/// What HTTP/2 runs on.
pub(crate) struct Transport {
    stream: Replayed<Layer>,
    repair: Repair,
    traffic: Rc<Traffic>,
}

/// What the first bytes of a stream say.
#[derive(Debug, PartialEq, Eq)]
enum Opening {
    Unknown,
    Tls,
    Http2,
    Http1,
    Garbage,
}

fn opening(first: &[u8], tls: bool) -> Opening {
    match first.first() {
        None => return Opening::Unknown,
        Some(&TLS_HANDSHAKE) if tls => return Opening::Tls,
        Some(_) => {}
    }
    if first.starts_with(PREFACE) {
        Opening::Http2
    } else if METHODS.iter().any(|method| first.starts_with(method)) {
        Opening::Http1
    } else if PREFACE.starts_with(first) || METHODS.iter().any(|method| method.starts_with(first)) {
        Opening::Unknown
    } else {
        Opening::Garbage
    }
}

async fn look<S: AsyncRead + Unpin>(stream: &mut S, tls: bool) -> io::Result<(Opening, Bytes)> {
    let mut first = BytesMut::with_capacity(1024);
    loop {
        match opening(&first, tls) {
            Opening::Unknown if first.len() < PREFACE.len() => {
                if stream.read_buf(&mut first).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            found => return Ok((found, first.freeze())),
        }
    }
}

/// Say something that is not HTTP/2, and close so that the peer gets to read it.
async fn part<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, last_words: &[u8]) -> io::Error {
    let farewell = async {
        stream.write_all(last_words).await?;
        stream.shutdown().await?;
        let mut sink = [0; 4096];
        let mut left: usize = 64 << 10;
        while left > 0 {
            match stream.read(&mut sink).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(Duration::from_millis(500), farewell).await;
    io::ErrorKind::InvalidData.into()
}

/// Find out what a new connection is, and do its TLS handshake.
pub(crate) async fn establish(
    mut socket: Socket,
    peer: String,
    mode: TlsMode,
    tls: Option<Arc<ServerConfig>>,
    traffic: Rc<Traffic>,
) -> io::Result<(Transport, ConnectionFacts)> {
    let mode = if matches!(socket, Socket::Unix(_)) { TlsMode::Off } else { mode };
    let (found, first) = look(&mut socket, mode != TlsMode::Off).await?;
    let facts = ConnectionFacts { peer, is_tls: found == Opening::Tls, peer_certificate: Vec::new() };
    match (found, tls) {
        (Opening::Tls, Some(config)) => {
            let stream = TlsAcceptor::from(config).accept(Replayed { first, inner: socket }).await?;
            up(&traffic.statistics.connections_tls);
            encrypted(Box::new(stream), facts, traffic).await
        }
        (Opening::Http2, _) if mode == TlsMode::Required => Err(part(socket, TLS_REQUIRED).await),
        (Opening::Http2, _) => Ok((Transport::new(first, Layer::Plain(socket), traffic), facts)),
        (Opening::Http1, _) => Err(part(socket, HTTP1_ANSWER).await),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn encrypted(
    mut stream: Box<TlsStream<Replayed<Socket>>>,
    mut facts: ConnectionFacts,
    traffic: Rc<Traffic>,
) -> io::Result<(Transport, ConnectionFacts)> {
    let (_, session) = stream.get_ref();
    if let Some(certificate) = session.peer_certificates().and_then(<[_]>::first) {
        facts.peer_certificate = certificate.to_vec();
    }
    match look(&mut stream, false).await? {
        (Opening::Http2, first) => Ok((Transport::new(first, Layer::Tls(stream), traffic), facts)),
        (Opening::Http1, _) => Err(part(stream, HTTP1_ANSWER).await),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

macro_rules! each {
    ($self:expr, $kind:ident, $stream:ident => $call:expr) => {
        match $self {
            $kind::Tcp($stream) => $call,
            $kind::Unix($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), Self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), Self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), Self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replayed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.has_remaining() {
            let length = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first.split_to(length));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replayed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

macro_rules! layer {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self {
            Layer::Plain($stream) => $call,
            Layer::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Layer {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        layer!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Layer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        layer!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        layer!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        layer!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        layer!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        layer!(self, stream => stream.is_write_vectored())
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.traffic.has_had_its_turn() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let fresh = buf.filled_mut().get_mut(before..).unwrap_or_default();
        let read = fresh.len() as u64;
        if read > 0 {
            self.traffic.resets.borrow_mut().pass(fresh);
            self.repair.pass(fresh);
            self.traffic.read.set(self.traffic.read.get().wrapping_add(read));
            self.traffic.statistics.bytes_read.fetch_add(read, Relaxed);
        }
        polled
    }
}

impl Transport {
    fn new(first: Bytes, inner: Layer, traffic: Rc<Traffic>) -> Self {
        Self { stream: Replayed { first, inner }, repair: Repair::new(), traffic }
    }

    fn count_written(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(written)) = &polled {
            self.traffic.statistics.bytes_written.fetch_add(*written as u64, Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.count_written(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.count_written(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide_and_only_as_many_as_needed() {
        assert_eq!(opening(b"\x16", true), Opening::Tls);
        assert_eq!(opening(b"\x16", false), Opening::Garbage);
        assert_eq!(opening(b"", true), Opening::Unknown);
        assert_eq!(opening(b"P", true), Opening::Unknown);
        assert_eq!(opening(b"PRI", true), Opening::Unknown);
        assert_eq!(opening(PREFACE, true), Opening::Http2);
        assert_eq!(opening(b"POST /x HTTP/1.1", true), Opening::Http1);
        assert_eq!(opening(b"PRIX", true), Opening::Garbage);
        assert_eq!(opening(b"\0", true), Opening::Garbage);
    }

    #[test]
    fn the_answer_to_http1_has_the_length_it_says() {
        let text = String::from_utf8_lossy(HTTP1_ANSWER);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.contains(&format!("content-length: {}", body.len())));
    }

    #[test]
    fn the_answer_to_plaintext_where_tls_is_required_is_two_frames() {
        let (settings, goaway) = TLS_REQUIRED.split_at(9);
        assert_eq!(settings.first_chunk::<4>(), Some(&[0, 0, 0, 4]));
        let length = goaway.get(2).copied().unwrap_or_default();
        assert_eq!(goaway.len(), 9 + usize::from(length));
    }
}

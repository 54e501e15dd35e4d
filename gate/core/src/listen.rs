//! Sockets that listen.

use crate::config::Config;
use crate::gate::{Shared, ToReactor};
use crate::transport::Socket;
use socket2::{Domain, SockAddr, Type};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::UnboundedSender;

const BACKLOG: i32 = 4_096;
/// Out of descriptors, or memory: others may give some back.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A bound socket, not yet in any runtime.
pub(crate) enum Bound {
    Tcp(socket2::Socket),
    Unix(socket2::Socket, Unlink),
}

/// Removes the name of a unix socket when nobody listens on it any more.
pub(crate) struct Unlink(PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Bind everything that is asked for, and say which TCP addresses it came to.
pub(crate) fn bind(config: &Config) -> io::Result<(Vec<Bound>, Vec<SocketAddr>)> {
    let mut bound = Vec::new();
    let mut addresses = Vec::new();
    for host in &config.tcp {
        for (socket, address) in listen_host(host, config.reuse_port)? {
            addresses.push(address);
            bound.push(Bound::Tcp(socket));
        }
    }
    for path in &config.unix {
        let socket = listen_unix(path).map_err(|error| of(path.display(), &error))?;
        bound.push(Bound::Unix(socket, Unlink(path.clone())));
    }
    Ok((bound, addresses))
}

/// Say which address an error is about.
fn of(address: impl std::fmt::Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{address}: {error}"))
}

/// Listen on every address of a host, on one port. Those this machine does not have may be missing, not all.
fn listen_host(addresses: &[SocketAddr], reuse_port: bool) -> io::Result<Vec<(socket2::Socket, SocketAddr)>> {
    let mut listening: Vec<(socket2::Socket, SocketAddr)> = Vec::new();
    let mut missing = None;
    for address in addresses {
        let mut address = *address;
        if let Some((_, first)) = listening.first() {
            address.set_port(first.port());
        }
        match listen_tcp(address, reuse_port) {
            Ok(socket) => {
                let address = socket.local_addr()?.as_socket().unwrap_or(address);
                listening.push((socket, address));
            }
            Err(error) if is_elsewhere(&error) => missing = Some(of(address, &error)),
            Err(error) => return Err(of(address, &error)),
        }
    }
    match missing {
        Some(error) if listening.is_empty() => Err(error),
        _ => Ok(listening),
    }
}

/// Whether this machine does not have the address, or nothing of its kind.
fn is_elsewhere(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

fn listen_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    listen(&socket, &SockAddr::from(address))?;
    Ok(socket)
}

fn listen_unix(path: &Path) -> io::Result<socket2::Socket> {
    remove_stale(path)?;
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    listen(&socket, &SockAddr::unix(path)?)?;
    Ok(socket)
}

fn listen(socket: &socket2::Socket, address: &SockAddr) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Remove a socket nobody answers on; leave one that is served, and what is no socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    let visitor = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Whoever serves it may be slow to accept, forbid us, or speak in datagrams: only nobody refuses.
    visitor.set_nonblocking(true)?;
    match visitor.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

/// Accept until the gate drains, dealing connections out to the threads in turn.
pub(crate) async fn accept(bound: Bound, shared: Arc<Shared>, threads: Vec<UnboundedSender<ToReactor>>) {
    let mut drain = shared.drain.subscribe();
    let mut turn = threads.iter().cycle();
    let listener = match Listener::new(bound) {
        Ok(listener) => listener,
        Err(error) => return shared.note(&format!("cannot listen: {error}")),
    };
    loop {
        let accepted = tokio::select! {
            biased;
            _ = drain.wait_for(Option::is_some) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                if let Some(thread) = turn.next() {
                    let _ = thread.send(ToReactor::Connection(socket, peer));
                }
            }
            // That connection was over before it was accepted; the next need not wait for it.
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                shared.note(&format!("cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | WouldBlock)
}

enum Listener {
    Tcp(TcpListener),
    // The name goes first: whoever finds it free is not bereft of his own.
    Unix(#[allow(dead_code, reason = "its drop is what it is for")] Unlink, UnixListener),
}

/// A socket between two threads: out of one runtime, not yet in the other.
pub(crate) enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Accepted {
    /// Let it be served by the runtime of this thread.
    pub(crate) fn adopt(self) -> io::Result<Socket> {
        match self {
            Self::Tcp(socket) => {
                socket.set_nodelay(true)?;
                tokio::net::TcpStream::from_std(socket).map(Socket::Tcp)
            }
            Self::Unix(socket) => tokio::net::UnixStream::from_std(socket).map(Socket::Unix),
        }
    }
}

impl Listener {
    fn new(bound: Bound) -> io::Result<Self> {
        match bound {
            Bound::Tcp(socket) => TcpListener::from_std(socket.into()).map(Self::Tcp),
            Bound::Unix(socket, name) => {
                UnixListener::from_std(socket.into()).map(|listener| Self::Unix(name, listener))
            }
        }
    }

    async fn accept(&self) -> io::Result<(Accepted, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // An IPv4 client of a socket for both is said to be one.
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                Ok((Accepted::Tcp(stream.into_std()?), peer.to_string()))
            }
            Self::Unix(_, listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Accepted::Unix(stream.into_std()?), String::from("unix:")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn loopback(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    // Of the addresses for documentation, which no machine has.
    fn elsewhere(port: u16) -> SocketAddr {
        (Ipv4Addr::new(192, 0, 2, 1), port).into()
    }

    #[test]
    fn of_a_host_every_address_that_is_here_is_had_on_one_port() -> io::Result<()> {
        let listening = listen_host(&[elsewhere(0), loopback(0), loopback(0)], true)?;
        let addresses: Vec<_> = listening.iter().map(|(_, address)| *address).collect();
        assert!(addresses.first().is_some_and(|first| first.port() > 0));
        assert!(matches!(addresses.as_slice(), [first, second] if first == second));
        Ok(())
    }

    #[test]
    fn a_host_is_not_had_where_it_is_elsewhere_or_its_port_is_taken() -> io::Result<()> {
        let says = |addresses: &[SocketAddr]| match listen_host(addresses, false) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        assert!(says(&[elsewhere(9)]).starts_with("192.0.2.1:9: "));
        let taken = listen_host(&[loopback(0)], false)?;
        let Some((_, address)) = taken.first() else { return Ok(()) };
        assert!(says(&[elsewhere(address.port()), *address]).starts_with(&address.to_string()));
        Ok(())
    }
}

//! A descriptor that becomes readable: an eventfd on Linux, a pair of sockets elsewhere.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

#[cfg(target_os = "linux")]
mod platform {
    use rustix::event::{EventfdFlags, eventfd};
    use std::io;
    use std::os::fd::OwnedFd;

    pub(super) struct Ends {
        pub(super) readable: OwnedFd,
    }

    pub(super) fn open() -> io::Result<Ends> {
        Ok(Ends { readable: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)? })
    }

    // A full counter is readable already; there is nothing else that could fail.
    pub(super) fn signal(ends: &Ends) {
        let _ = rustix::io::write(&ends.readable, &1u64.to_ne_bytes());
    }

    pub(super) fn clear(ends: &Ends) {
        let _ = rustix::io::read(&ends.readable, &mut [0u8; 8]);
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixStream;

    pub(super) struct Ends {
        pub(super) readable: UnixStream,
        writable: UnixStream,
    }

    pub(super) fn open() -> io::Result<Ends> {
        let (readable, writable) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        writable.set_nonblocking(true)?;
        Ok(Ends { readable, writable })
    }

    // A full pipe is readable already.
    pub(super) fn signal(ends: &Ends) {
        let _ = (&ends.writable).write(&[1]);
    }

    pub(super) fn clear(ends: &Ends) {
        while matches!((&ends.readable).read(&mut [0; 64]), Ok(64)) {}
    }
}

pub(crate) struct WakeUp(platform::Ends);

impl WakeUp {
    pub(crate) fn new() -> io::Result<Self> {
        platform::open().map(Self)
    }

    pub(crate) fn signal(&self) {
        platform::signal(&self.0);
    }

    pub(crate) fn clear(&self) {
        platform::clear(&self.0);
    }

    pub(crate) fn fileno(&self) -> RawFd {
        self.0.readable.as_raw_fd()
    }
}

//! A gRPC server for a single-threaded brain: HTTP/2, TLS and framing in native threads; calls come out in
//! batches, replies go in in batches.
//!
//! ```text
//!  sockets ─▶ transport ─▶ connection ─▶ call ─▶ inbox ──take──▶ ┐
//!             (TLS, first   (HTTP/2,     (framing,               │ Python
//!              bytes)        watch)       limits)                │
//!  sockets ◀─ connection ◀─ stream, reactor ◀──────────reply──── ┘
//! ```
//!
//! It knows no service: a list of methods and their kinds. Everything that comes from the wire is bounded,
//! and nothing that comes from it can panic (the lints of this workspace forbid what could).

#![forbid(unsafe_code)]

mod authority;
mod busy_poll;
mod call;
mod certificate;
mod config;
mod connection;
pub mod frame;
mod gate;
mod given_up;
mod inbox;
mod ledger;
mod listen;
mod lone_caller;
pub mod metadata;
mod reactor;
mod reply;
mod statistics;
mod stream;
mod tls;
mod transport;
mod wake;

pub use certificate::self_signed;
pub use config::{Config, Kind, Limits, TlsMode};
pub use gate::{Gate, StartError};
pub use inbox::{CallState, CancelReason, ConnectionFacts, Event, EventKind, Inbox, Request};
pub use reply::{Keep, Outgoing, Reply};
pub use statistics::Statistics;
pub use tls::{ClientCertificate, TlsSource};

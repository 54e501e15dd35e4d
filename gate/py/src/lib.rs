//! The gate for Python: one object that listens, an inbox to take from, replies to give.
//!
//! What holds the GIL here never waits: taking empties a queue, replying appends to one. What may take long
//! (binding, closing) lets go of it first. `cosmodrome_gate.pyi` is the reference for users.

mod request;

use gate_core::{
    ClientCertificate, Config, Gate, Keep, Kind, Limits, Outgoing, Reply, StartError, TlsMode, TlsSource,
    frame,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use request::Request;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A gate that listens from its making to `close`.
#[pyclass(frozen, module = "cosmodrome_gate")]
struct Server {
    gate: Gate,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (methods, *, tcp=Vec::new(), unix=Vec::new(), reuse_port=false, threads=1, tls="off", certificate=Vec::new(), key=Vec::new(), client_ca=Vec::new(), client_certificate="none", limits=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of a constructor in Python")]
    fn new(
        py: Python<'_>,
        methods: Vec<(String, u8)>,
        tcp: Vec<(String, u16)>,
        unix: Vec<PathBuf>,
        reuse_port: bool,
        threads: usize,
        tls: &str,
        certificate: Vec<u8>,
        key: Vec<u8>,
        client_ca: Vec<u8>,
        client_certificate: &str,
        limits: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let source = tls_source(certificate, key, client_ca, client_certificate)?;
        let tls = match tls {
            "off" => TlsMode::Off,
            "auto" => TlsMode::Auto,
            "required" => TlsMode::Required,
            other => {
                return Err(PyValueError::new_err(format!("tls is {other:?}, not off, auto or required")));
            }
        };
        let methods = methods.into_iter().map(method).collect::<PyResult<_>>()?;
        let limits = limits_of(limits)?;
        let started = py.detach(move || {
            let tcp = tcp.into_iter().map(resolve).collect::<Result<_, _>>()?;
            let certificate = (tls != TlsMode::Off).then_some(source);
            Gate::start(Config { methods, tcp, unix, reuse_port, threads, tls, certificate, limits })
        });
        match started {
            Ok(gate) => Ok(Self { gate }),
            Err(StartError::Config(text)) => Err(PyValueError::new_err(text)),
            Err(StartError::Io(error)) => Err(error.into()),
        }
    }

    /// What `tcp` came to, with real ports.
    #[getter]
    fn addresses(&self) -> Vec<(String, u16)> {
        self.gate.addresses().iter().map(|address| (address.ip().to_string(), address.port())).collect()
    }

    /// A descriptor that is readable while events wait.
    fn fileno(&self) -> i32 {
        self.gate.inbox().fileno()
    }

    /// The events that wait, oldest first: (kind, id, detail, message, request or token).
    #[pyo3(signature = (max_events=1024))]
    fn take<'py>(&self, py: Python<'py>, max_events: usize) -> PyResult<Bound<'py, PyList>> {
        let events = self.gate.inbox().take(max_events);
        let mut items = Vec::with_capacity(events.len());
        for event in events {
            let message = PyBytes::new(py, &event.message);
            let with = match event.request {
                Some(request) => Some(Py::new(py, Request::new(request))?.into_any()),
                None => event.keep.and_then(token),
            };
            items.push((event.kind as u8, event.id, event.detail, message, with).into_pyobject(py)?);
        }
        PyList::new(py, items)
    }

    /// Wait for events without sleeping while a lone caller is served: the microseconds it took, else 0.
    fn linger(&self, py: Python<'_>, limit_us: u64) -> u128 {
        py.detach(|| self.gate.linger(Duration::from_micros(limit_us))).as_micros()
    }

    /// Answer calls: (id, message), (id, messages), (id, messages, token) or (id, status, text). Never waits.
    fn reply(&self, replies: &Bound<'_, PyList>) -> PyResult<()> {
        let mut outgoing = Vec::with_capacity(replies.len());
        for item in replies.iter() {
            outgoing.push(outgoing_of(item.cast::<PyTuple>()?)?);
        }
        if !outgoing.is_empty() {
            self.gate.reply(outgoing);
        }
        Ok(())
    }

    /// Send one message of a stream that goes on; False when it is over or its client too slow.
    fn send(&self, request: &Bound<'_, Request>, message: &Bound<'_, PyBytes>) -> PyResult<bool> {
        let state = request.get().state();
        let frame = framed(std::slice::from_ref(message))?;
        let waiting = state.unsent.load(Relaxed);
        // A single message larger than the bound passes when nothing waits.
        if state.is_gone()
            || (waiting > 0 && (waiting + frame.len()) as u64 > self.gate.send_bytes_per_stream())
        {
            return Ok(false);
        }
        state.unsent.fetch_add(frame.len(), Relaxed);
        self.gate.reply(vec![Outgoing { id: state.id, reply: Reply::Message(frame), keep: None }]);
        Ok(true)
    }

    /// The counters at this moment.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = PyDict::new(py);
        for (name, value) in self.gate.statistics().snapshot() {
            counters.set_item(name, value)?;
        }
        Ok(counters)
    }

    /// Lines for the log since the last time.
    fn notes(&self) -> Vec<String> {
        self.gate.notes()
    }

    /// Use these for new connections; those open go on. ValueError when they do not fit.
    #[pyo3(signature = (certificate, key, client_ca=Vec::new(), client_certificate="none"))]
    fn reload_certificates(
        &self,
        py: Python<'_>,
        certificate: Vec<u8>,
        key: Vec<u8>,
        client_ca: Vec<u8>,
        client_certificate: &str,
    ) -> PyResult<()> {
        let source = tls_source(certificate, key, client_ca, client_certificate)?;
        py.detach(|| self.gate.reload(&source)).map_err(PyValueError::new_err)
    }

    /// Take no more connections, tell clients to go, let calls finish, then close them.
    fn drain(&self, grace_ms: u64) {
        self.gate.drain(Duration::from_millis(grace_ms));
    }

    /// Stop at once and wait for the native threads.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.gate.close());
    }
}

/// What a reply carried for us.
fn token(keep: Keep) -> Option<Py<PyAny>> {
    keep.downcast().ok().map(|token| *token)
}

fn method((path, kind): (String, u8)) -> PyResult<(String, Kind)> {
    let kind = match kind {
        0 => Kind::Unary,
        1 => Kind::ServerStream,
        2 => Kind::Bidi,
        other => return Err(PyValueError::new_err(format!("method {path}: kind {other} is not 0, 1 or 2"))),
    };
    Ok((path, kind))
}

/// The addresses of a host, each once: `localhost` has one of IPv4 and one of IPv6.
fn resolve((host, port): (String, u16)) -> Result<Vec<SocketAddr>, StartError> {
    let found = (host.as_str(), port)
        .to_socket_addrs()
        .map_err(|error| std::io::Error::new(error.kind(), format!("{host}:{port}: {error}")))?;
    let mut addresses = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(StartError::Config(format!("host {host:?} has no address")));
    }
    Ok(addresses)
}

fn limits_of(changes: Option<&Bound<'_, PyDict>>) -> PyResult<Limits> {
    let mut limits = Limits::default();
    for (name, value) in changes.into_iter().flatten() {
        limits.set(name.extract::<&str>()?, value.extract()?).map_err(PyValueError::new_err)?;
    }
    Ok(limits)
}

fn tls_source(certificate: Vec<u8>, key: Vec<u8>, client_ca: Vec<u8>, asked: &str) -> PyResult<TlsSource> {
    let client_certificate = match asked {
        "none" => ClientCertificate::None,
        "optional" => ClientCertificate::Optional,
        "required" => ClientCertificate::Required,
        other => {
            return Err(PyValueError::new_err(format!(
                "client_certificate is {other:?}, not none, optional or required"
            )));
        }
    };
    Ok(TlsSource { certificate, key, client_ca, client_certificate })
}

/// `(id, message)`, `(id, [message, …])`, `(id, [message, …], token)` or `(id, status, text)`.
fn outgoing_of(item: &Bound<'_, PyTuple>) -> PyResult<Outgoing> {
    let id = item.get_item(0)?.extract()?;
    let said = item.get_item(1)?;
    let mut keep: Option<Keep> = None;
    let reply = if let Ok(message) = said.cast::<PyBytes>() {
        Reply::Last(framed(std::slice::from_ref(message))?)
    } else if let Ok(messages) = said.cast::<PyList>() {
        let messages = messages
            .iter()
            .map(|message| Ok(message.cast_into::<PyBytes>()?))
            .collect::<PyResult<Vec<_>>>()?;
        if item.len() == 3 {
            keep = Some(Box::new(item.get_item(2)?.unbind()));
        }
        Reply::Last(framed(&messages)?)
    } else if item.len() == 3 {
        Reply::Status(said.extract()?, item.get_item(2)?.cast::<PyString>()?.to_str()?.to_owned())
    } else {
        return Err(PyTypeError::new_err(
            "a reply is (id, bytes), (id, [bytes, …]), (id, [bytes, …], token) or (id, status, text)",
        ));
    };
    Ok(Outgoing { id, reply, keep })
}

fn framed(messages: &[Bound<'_, PyBytes>]) -> PyResult<bytes::Bytes> {
    if messages.iter().any(|message| message.as_bytes().len() >= u32::MAX as usize) {
        return Err(PyValueError::new_err("a gRPC message is shorter than 4 GiB"));
    }
    Ok(frame::framed_all(messages.iter().map(PyBytesMethods::as_bytes)))
}

/// A certificate that signs itself, and its key: (chain, key), PEM.
#[pyfunction]
#[pyo3(signature = (common_name, names, *, days))]
fn self_signed(
    py: Python<'_>,
    common_name: &str,
    names: Vec<String>,
    days: u16,
) -> PyResult<(Py<PyBytes>, Py<PyBytes>)> {
    let (chain, key) =
        py.detach(|| gate_core::self_signed(common_name, names, days)).map_err(PyValueError::new_err)?;
    Ok((PyBytes::new(py, chain.as_bytes()).unbind(), PyBytes::new(py, key.as_bytes()).unbind()))
}

/// Whether a server could present these; ValueError says why not.
#[pyfunction]
#[pyo3(signature = (certificate, key, client_ca=Vec::new(), client_certificate="none"))]
fn check_certificate(
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Vec<u8>,
    client_certificate: &str,
) -> PyResult<()> {
    let source = tls_source(certificate, key, client_ca, client_certificate)?;
    source.build().map(drop).map_err(PyValueError::new_err)
}

/// The native front: see the stub for what there is.
#[pymodule]
fn cosmodrome_gate(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Server>()?;
    module.add_class::<Request>()?;
    module.add_function(wrap_pyfunction!(self_signed, module)?)?;
    module.add_function(wrap_pyfunction!(check_certificate, module)?)?;
    for (name, value) in
        [("CALL", 0), ("OPEN", 1), ("MESSAGE", 2), ("HALF_CLOSE", 3), ("CANCEL", 4), ("DRAINED", 5)]
    {
        module.add(name, value)?;
    }
    for (name, value) in [("UNARY", 0), ("SERVER_STREAM", 1), ("BIDI", 2)] {
        module.add(name, value)?;
    }
    Ok(())
}

//! What a call brought beside its message, as Python sees it: a read-only mapping of its headers.

use gate_core::CallState;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

/// The headers of a call, and facts about it.
#[pyclass(frozen, mapping, module = "cosmodrome_gate")]
pub(crate) struct Request {
    request: gate_core::Request,
}

impl Request {
    pub(crate) fn new(request: gate_core::Request) -> Self {
        Self { request }
    }

    pub(crate) fn state(&self) -> &CallState {
        &self.request.state
    }

    fn value(&self, name: &str) -> Option<String> {
        self.request.metadata.get(name.as_bytes()).map(text)
    }
}

/// Header bytes as text: each byte one character, which for ASCII is what everybody means.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => text.to_owned(),
        _ => bytes.iter().copied().map(char::from).collect(),
    }
}

#[pymethods]
impl Request {
    /// The call.
    #[getter]
    fn id(&self) -> u64 {
        self.request.state.id
    }

    /// What was left of the deadline when the call arrived; None for no deadline.
    #[getter]
    fn deadline_ms(&self) -> Option<u64> {
        self.request.deadline_ms
    }

    /// `ip:port`, or `unix:`.
    #[getter]
    fn peer(&self) -> &str {
        &self.request.connection.peer
    }

    /// Whether the connection is encrypted.
    #[getter]
    fn is_tls(&self) -> bool {
        self.request.connection.is_tls
    }

    /// The client's certificate, DER; b"" for none.
    #[getter]
    fn peer_certificate<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.request.connection.peer_certificate)
    }

    /// Whether the call was answered, cancelled, or ran out of time.
    #[getter]
    fn is_over(&self) -> bool {
        self.request.state.is_gone()
    }

    fn __getitem__(&self, name: &str) -> PyResult<String> {
        self.value(name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    #[pyo3(signature = (name, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        match self.value(name) {
            Some(value) => Some(PyString::new(py, &value).into_any()),
            None => default,
        }
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> bool {
        name.extract::<&str>().is_ok_and(|name| self.request.metadata.get(name.as_bytes()).is_some())
    }

    fn __len__(&self) -> usize {
        self.names().len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyIterator>> {
        PyList::new(py, self.names())?.try_iter()
    }

    fn keys(&self) -> Vec<String> {
        self.names()
    }

    fn values(&self) -> Vec<String> {
        self.names().iter().filter_map(|name| self.value(name)).collect()
    }

    fn items(&self) -> Vec<(String, String)> {
        self.names().into_iter().filter_map(|name| self.value(&name).map(|value| (name, value))).collect()
    }
}

impl Request {
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (name, _) in self.request.metadata.iter() {
            let name = text(name);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

//! Figures for a person who watches the program from outside: `AQUIFER_WATCH=path`.
//!
//! The one idea: a local socket that answers every line with one line of JSON, all devices of the
//! process in it. It only tells; nothing that comes in changes anything, and other users are
//! refused. `aquifer watch` is at the other end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use aquifer_backend::is_own_user;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::device::{Device, DeviceInner};
use crate::error::{Error, Inner, Result};
use crate::trace::with_pid;

/// Watchers that are answered at once; more are turned away.
const MOST_WATCHERS: usize = 8;
/// Bytes of a question; what is in it does not matter.
const MOST_ASKED: u64 = 256;
/// How long a watcher may be silent, or slow to read.
const PATIENCE: Duration = Duration::from_secs(60);

/// The devices of this process, and the socket if one is open.
struct Watched {
    devices: Vec<Weak<DeviceInner>>,
    socket: Option<PathBuf>,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { devices: Vec::new(), socket: None });
static WATCHERS: AtomicUsize = AtomicUsize::new(0);

/// Shows a device at the socket that `AQUIFER_WATCH` names, if it names one.
pub(crate) fn register(device: &Device) -> Result<()> {
    let Some(path) = std::env::var_os("AQUIFER_WATCH").filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let mut watched = WATCHED.lock();
    if watched.socket.is_none() {
        let path = with_pid(Path::new(&path));
        let failed = |source| Error::new(Inner::Io { path: path.clone(), source });
        let listener = listen(&path).map_err(failed)?;
        std::thread::Builder::new()
            .name("aquifer-watch".into())
            .spawn(move || serve(&listener))
            .map_err(failed)?;
        watched.socket = Some(path.clone());
    }
    watched.devices.retain(|known| known.strong_count() > 0);
    watched.devices.push(Arc::downgrade(&device.0));
    Ok(())
}

/// A device closes; with the last of them the socket goes.
pub(crate) fn forget() {
    let mut watched = WATCHED.lock();
    watched.devices.retain(|known| known.strong_count() > 0);
    if watched.devices.is_empty()
        && let Some(path) = watched.socket.take()
    {
        // The thread sees that it is not wanted any more when somebody calls.
        let _ = UnixStream::connect(&path);
        let _ = fs::remove_file(&path);
    }
}

fn listen(path: &Path) -> std::io::Result<UnixListener> {
    // What a program that was killed has left: nobody answers there.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    // Who connects before this is refused by whose user it is.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn serve(listener: &UnixListener) {
    while let Ok((stream, _)) = listener.accept() {
        if WATCHED.lock().socket.is_none() {
            return;
        }
        if !is_own_user(&stream) || WATCHERS.load(Ordering::Relaxed) >= MOST_WATCHERS {
            continue;
        }
        WATCHERS.fetch_add(1, Ordering::Relaxed);
        let answer = move || {
            // A watcher that goes away is no error of ours.
            let _ = answer(stream);
            WATCHERS.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("aquifer-watch".into()).spawn(answer).is_err() {
            WATCHERS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer(stream: UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut questions = BufReader::new(stream.try_clone()?);
    let mut answers = stream;
    loop {
        let mut question = Vec::new();
        let asked = questions.by_ref().take(MOST_ASKED).read_until(b'\n', &mut question)?;
        if asked == 0 || WATCHED.lock().socket.is_none() {
            return Ok(());
        }
        let mut line = snapshot().to_string();
        line.push('\n');
        answers.write_all(line.as_bytes())?;
    }
}

/// The figures of every device, as they are now.
fn snapshot() -> Value {
    let devices = WATCHED.lock().devices.clone();
    let devices: Vec<Value> = devices.iter().filter_map(Weak::upgrade).map(figures).collect();
    json!({ "pid": std::process::id(), "devices": devices })
}

fn figures(inner: Arc<DeviceInner>) -> Value {
    let device = Device(inner);
    let (stats, rows) = {
        let pool = device.pool();
        (pool.stats(), pool.labels())
    };
    let memory: Map<String, Value> =
        stats.figures().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let labels = rows.iter().map(|row| {
        json!({ "name": row.name, "active": row.active, "peak": row.peak, "count": row.count })
    });
    let labels: Vec<Value> = labels.collect();
    json!({
        "backend": device.backend(), "name": device.name(), "memory": memory, "labels": labels,
    })
}

//! Figures for a person who watches the program from outside: `AQUIFER_WATCH=path`.
//!
//! The one idea: a local socket that answers every line with one line of JSON, all devices of the
//! process in it. It only tells; nothing that comes in changes anything, and other users are
//! refused. `aquifer watch` is at the other end.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use aquifer_backend::is_own_user;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::device::{Device, DeviceInner};
use crate::trace::with_pid;

/// Watchers that are answered at once; more are turned away.
const MOST_WATCHERS: usize = 8;
/// How long a watcher may be silent: longer than between any two looks.
const SILENCE: Duration = Duration::from_secs(2 * 3600);
/// How long a watcher may take to read.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device that is open. Its own drop takes it out of the list before anything of it goes.
struct Open(*const DeviceInner);

// SAFETY: a `DeviceInner` is shared between threads as it is (`Device` is `Send` and `Sync`), and
// whoever looks through the pointer holds the list's lock, which `forget` needs too.
unsafe impl Send for Open {}

/// The devices of this process, and the socket if one is open.
struct Watched {
    devices: Vec<Open>,
    socket: Option<Socket>,
}

struct Socket {
    path: PathBuf,
    closed: Arc<AtomicBool>,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { devices: Vec::new(), socket: None });
static WATCHERS: AtomicUsize = AtomicUsize::new(0);

/// Shows a device at the socket that `AQUIFER_WATCH` names, if it names one. A program that cannot
/// be watched goes on, and says so.
pub(crate) fn register(device: &Device) {
    let Some(path) = std::env::var_os("AQUIFER_WATCH").filter(|path| !path.is_empty()) else {
        return;
    };
    let mut watched = WATCHED.lock();
    if watched.socket.is_none() {
        let path = with_pid(Path::new(&path));
        match open(&path) {
            Ok(socket) => watched.socket = Some(socket),
            Err(error) => {
                let path = path.display();
                eprintln!("aquifer: AQUIFER_WATCH={path}: {error}: this process is not watched");
                return;
            }
        }
    }
    watched.devices.push(Open(Arc::as_ptr(&device.0)));
}

/// A device closes; with the last of them the socket goes.
pub(crate) fn forget(device: &DeviceInner) {
    let mut watched = WATCHED.lock();
    watched.devices.retain(|open| !ptr::eq(open.0, device));
    if !watched.devices.is_empty() {
        return;
    }
    let socket = watched.socket.take();
    drop(watched);
    if let Some(Socket { path, closed }) = socket {
        closed.store(true, Ordering::Release);
        // The thread sees it when somebody calls.
        let _ = UnixStream::connect(&path);
        let _ = fs::remove_file(&path);
    }
}

fn open(path: &Path) -> std::io::Result<Socket> {
    // What a program that was killed has left: nobody answers there.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(refused) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    // Who connects before this is refused by whose user it is.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let closed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&closed);
    std::thread::Builder::new()
        .name("aquifer-watch".into())
        .spawn(move || serve(&listener, &seen))?;
    Ok(Socket { path: path.to_owned(), closed })
}

fn serve(listener: &UnixListener, closed: &AtomicBool) {
    loop {
        let called = listener.accept();
        if closed.load(Ordering::Acquire) {
            return;
        }
        let Ok((stream, _)) = called else {
            // Out of descriptors, or the caller has gone: later it may be otherwise.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
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
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut questions = BufReader::new(stream.try_clone()?);
    let mut answers = stream;
    // What a question says does not matter, only that it ends.
    while questions.skip_until(b'\n')? > 0 {
        let Some(told) = snapshot() else { break };
        let mut line = told.to_string();
        line.push('\n');
        answers.write_all(line.as_bytes())?;
    }
    Ok(())
}

/// The figures of every device, as they are now; `None` once all have closed.
fn snapshot() -> Option<Value> {
    let watched = WATCHED.lock();
    let devices = watched.devices.iter().map(|open| {
        // SAFETY: the device is in the list, so its drop has not begun or waits in `forget` for the
        // lock that is held here: all of it is there, where its `Arc` has it.
        figures(unsafe { &*open.0 })
    });
    let devices: Vec<Value> = devices.collect();
    watched.socket.is_some().then(|| json!({ "pid": std::process::id(), "devices": devices }))
}

fn figures(device: &DeviceInner) -> Value {
    let (stats, rows) = device.account();
    let memory: Map<String, Value> =
        stats.figures().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let labels = rows.iter().map(|row| {
        json!({ "name": row.name, "active": row.active, "peak": row.peak, "count": row.count })
    });
    let labels: Vec<Value> = labels.collect();
    let (backend, name) = (device.backend.api(), &device.backend.caps().name);
    json!({ "backend": backend, "name": name, "memory": memory, "labels": labels })
}

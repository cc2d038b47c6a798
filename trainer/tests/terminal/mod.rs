//! A terminal for the program: a pseudo-terminal of some columns, and what a person would see on
//! it.

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A program on a terminal of its own.
pub struct Terminal {
    master: File,
    /// The program.
    pub child: Child,
    shown: Arc<Mutex<Shown>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts `headlong` with `arguments` in `folder`, on a terminal of `columns`.
    pub fn start(
        columns: usize,
        folder: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave =
            open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        set_columns(&master, columns);
        let slave = || slave.try_clone().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_headlong"));
        command
            .args(arguments)
            .current_dir(folder)
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color");
        command.envs(environment.iter().copied());
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        let shown = Arc::new(Mutex::new(Shown::new(columns)));
        let (mut output, seen) = (File::from(master.try_clone().unwrap()), Arc::clone(&shown));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when the last one who could write has ended.
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap().take(&bytes[..length]);
            }
        });
        Self { master: master.into(), child, shown, reader: Some(reader) }
    }

    /// Presses keys; those that the terminal shows, it shows.
    pub fn press(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    /// Makes the window that wide. Lines that no longer fit are broken, as most terminals do it.
    pub fn resize(&mut self, columns: usize) {
        self.shown.lock().unwrap().resize(columns);
        set_columns(&self.master, columns);
    }

    /// Everything written so far, escape codes included.
    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap().written).into_owned()
    }

    /// The rows as they stand now.
    pub fn rows(&self) -> Vec<String> {
        self.shown.lock().unwrap().text()
    }

    /// Waits for the end: the exit code, the rows, and which of them were broken by the terminal.
    pub fn end(mut self) -> (Option<i32>, Vec<String>, Vec<String>) {
        let code = self.child.wait().unwrap().code();
        self.reader.take().unwrap().join().unwrap();
        let shown = self.shown.lock().unwrap();
        (code, shown.text(), shown.broken.clone())
    }
}

fn set_columns(terminal: impl std::os::fd::AsFd, columns: usize) {
    let size = Winsize { ws_row: 24, ws_col: columns as u16, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

/// What is on the screen and above it: rows of letters, a cursor, and as much of the escape codes
/// as the program uses.
struct Shown {
    columns: usize,
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// Begun, and not at its end.
    escape: Option<String>,
    /// Bytes of a letter that is not complete.
    pending: Vec<u8>,
    written: Vec<u8>,
    broken: Vec<String>,
}

impl Shown {
    fn new(columns: usize) -> Self {
        Self {
            columns,
            rows: vec![Vec::new()],
            row: 0,
            column: 0,
            escape: None,
            pending: Vec::new(),
            written: Vec::new(),
            broken: Vec::new(),
        }
    }

    fn text(&self) -> Vec<String> {
        let rows = self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned());
        rows.collect()
    }

    fn take(&mut self, bytes: &[u8]) {
        self.written.extend_from_slice(bytes);
        self.pending.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.pending) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = self.pending.split_off(whole);
        let text = String::from_utf8(std::mem::replace(&mut self.pending, rest)).unwrap();
        text.chars().for_each(|letter| self.letter(letter));
    }

    fn letter(&mut self, letter: char) {
        if let Some(mut escape) = self.escape.take() {
            escape.push(letter);
            if escape.len() > 1 && letter.is_ascii_alphabetic() {
                self.escaped(&escape[1..]);
            } else {
                self.escape = Some(escape);
            }
            return;
        }
        match letter {
            '\u{1b}' => self.escape = Some(String::new()),
            '\r' => self.column = 0,
            '\n' => self.down(),
            letter => self.put(letter),
        }
    }

    fn put(&mut self, letter: char) {
        if self.column == self.columns {
            self.broken.push(self.rows[self.row].iter().collect());
            self.column = 0;
            self.down();
        }
        let row = &mut self.rows[self.row];
        row.resize(row.len().max(self.column + 1), ' ');
        row[self.column] = letter;
        self.column += 1;
    }

    fn down(&mut self) {
        self.row += 1;
        self.rows.resize(self.rows.len().max(self.row + 1), Vec::new());
    }

    fn escaped(&mut self, code: &str) {
        let (number, kind) = code.split_at(code.len() - 1);
        let count = number.parse().unwrap_or(1);
        match kind {
            "m" => {}
            "A" => self.row = self.row.saturating_sub(count),
            "B" => self.row = (self.row + count).min(self.rows.len() - 1),
            "C" => self.column += count,
            "D" => self.column = self.column.saturating_sub(count),
            "K" => self.rows[self.row].truncate(self.column),
            "J" => {
                self.rows.truncate(self.row + 1);
                self.rows[self.row].truncate(self.column);
            }
            other => panic!("this terminal does not know the escape code {number}{other}"),
        }
    }

    /// Breaks rows that are too long; the cursor stays after the letter that it is after.
    fn resize(&mut self, columns: usize) {
        let rows = std::mem::take(&mut self.rows);
        let (mut row, mut column) = (0, 0);
        for (index, letters) in rows.into_iter().enumerate() {
            if index == self.row {
                let before = self.column.saturating_sub(1) / columns;
                (row, column) = (self.rows.len() + before, self.column - before * columns);
            }
            self.rows.extend(letters.chunks(columns).map(<[char]>::to_vec));
            if letters.is_empty() {
                self.rows.push(Vec::new());
            }
        }
        self.rows.resize(self.rows.len().max(row + 1), Vec::new());
        (self.row, self.column, self.columns) = (row, column, columns);
    }
}

//! Mistakes that the copy of `comm/src/` can be told to make, each of which some seed must show.

/// A mistake: in which file which words become which.
#[derive(Debug, Clone, Copy)]
pub struct Mistake {
    /// How it is switched on.
    pub name: &'static str,
    /// Below `comm/src/`.
    pub file: &'static str,
    /// What is there, once.
    pub right: &'static str,
    /// What is there instead; `MADE` becomes whether the mistake is made.
    pub wrong: &'static str,
}

/// All of them.
pub const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "report-kept",
        file: "transport/tcp/health.rs",
        right: "        if !over {\n",
        wrong: "        if !over && !MADE {\n",
    },
    Mistake {
        name: "farewell-early",
        file: "transport/tcp/health.rs",
        right: "ending.num_goodbyes + 1 == self.num_ranks;",
        wrong: "ending.num_goodbyes + 1 + usize::from(MADE) >= self.num_ranks;",
    },
    Mistake {
        name: "first-named-is-blamed",
        file: "transport/tcp/health.rs",
        right: "let waits = waits && self.is_fresh(last);",
        wrong: "let waits = waits && self.is_fresh(last) && !MADE;",
    },
    Mistake {
        name: "no-verdict",
        file: "transport/tcp/health.rs",
        right: "match self.wait_for_first(VERDICT) {",
        wrong: "match self.wait_for_first(if MADE { Duration::ZERO } else { VERDICT }) {",
    },
    Mistake {
        name: "goodbye-not-awaited",
        file: "transport/tcp/health.rs",
        right: "            let ending = self.lock();\n            if ending.farewell {",
        wrong: "            let ending = self.lock();\n            if ending.farewell || MADE {",
    },
    Mistake {
        name: "goodbye-of-the-lost",
        file: "transport/tcp/control.rs",
        right: "if !health.is_over() && !health.has_said_goodbye(link.peer) {",
        wrong: "if !health.is_over() && !health.has_said_goodbye(link.peer) && !MADE {",
    },
    Mistake {
        name: "own-stop-counts",
        file: "transport/tcp/control.rs",
        right: "if now.saturating_duration_since(last) > pause + self.deadlines.heartbeat {",
        wrong: "if !MADE && now.saturating_duration_since(last) > pause + self.deadlines.heartbeat {",
    },
    Mistake {
        name: "silence-is-fine",
        file: "transport/tcp/control.rs",
        right: "if silent >= self.deadlines.silence\n",
        wrong: "if silent >= self.deadlines.silence\n                && !MADE\n",
    },
    Mistake {
        name: "busy-not-excused",
        file: "transport/tcp/control.rs",
        right: "if busy.iter().any(|busy| busy.rank != own) {",
        wrong: "if busy.iter().any(|busy| busy.rank != own) && !MADE {",
    },
    Mistake {
        name: "no-last-words",
        file: "transport/tcp/control.rs",
        right: "while Instant::now() < until && self",
        wrong: "while !MADE && Instant::now() < until && self",
    },
    Mistake {
        name: "rest-of-a-record-lost",
        file: "transport/tcp/control_frame.rs",
        right: "self.sealed.drain(..at);",
        wrong: "self.sealed.drain(..if MADE { self.sealed.len() } else { at });",
    },
    Mistake {
        name: "head-sent-again",
        file: "transport/tcp/wire.rs",
        right: "IoSlice::new(&head[at..])",
        wrong: "IoSlice::new(&head[if MADE { 0 } else { at }..])",
    },
    Mistake {
        name: "payload-sent-again",
        file: "transport/tcp/wire.rs",
        right: "system::send(stream, &bytes[at - HEAD_BYTES..])",
        wrong: "system::send(stream, &bytes[if MADE { 0 } else { at - HEAD_BYTES }..])",
    },
    Mistake {
        name: "sealed-rest-lost",
        file: "transport/tcp/wire.rs",
        right: "self.filled -= record;",
        wrong: "self.filled = if MADE { 0 } else { self.filled - record };",
    },
    Mistake {
        name: "waits-for-ever-told",
        file: "transport/tcp/progress_loop.rs",
        right: "        health.note_waiting(None);\n        Ok(())",
        wrong: "        (!MADE).then(|| health.note_waiting(None));\n        Ok(())",
    },
    Mistake {
        name: "dialled-once",
        file: "rendezvous/dial.rs",
        right: "if Instant::now() + pause >= self.deadline {",
        wrong: "if MADE || Instant::now() + pause >= self.deadline {",
    },
    Mistake {
        name: "admits-who-has-left",
        file: "rendezvous/listener.rs",
        right: "Some(_) if self.has_left() => ",
        wrong: "Some(_) if self.has_left() && !MADE => ",
    },
    Mistake {
        name: "strangers-stay",
        file: "rendezvous/listener.rs",
        right: "if self.frame[..known] != MAGIC[..known] {",
        wrong: "if self.frame[..known] != MAGIC[..known] && !MADE {",
    },
    Mistake {
        name: "end-of-the-rendezvous-unheard",
        file: "rendezvous/enter.rs",
        right: "Control::Abort { error } => return Err(error),",
        wrong: "Control::Abort { error } if !MADE => return Err(error),",
    },
    Mistake {
        name: "end-of-the-rendezvous-untold",
        file: "rendezvous/gather.rs",
        right: "        self.tell(&Control::Abort { error: error.clone() });\n",
        wrong: "        (!MADE).then(|| self.tell(&Control::Abort { error: error.clone() }));\n",
    },
    Mistake {
        name: "lost-at-the-rendezvous",
        file: "rendezvous/gather.rs",
        right: "self.look_after(ranks[place])?;",
        wrong: "(!MADE).then(|| self.look_after(ranks[place])).transpose()?;",
    },
];

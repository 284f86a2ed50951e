package cluster

import (
	"bytes"
	"log/slog"
	"slices"

	"github.com/lbprim/lbprim/steering/cluster/flowshare"
)

// Stats are the counters of a [Cluster]. It is plain data.
type Stats struct {
	Flows flowshare.Stats // of the shared flows

	// Refused could not prove to belong here, or speak no version in common. GossipRefused are messages of
	// gossip that memberlist refused for their key, label or form.
	Refused, GossipRefused uint64
	// Malformed streams and reports were refused: damaged, oversized, replayed or out of order.
	Malformed uint64
	// Stale reports of nodes came again or late, as they do with gossip, and changed nothing.
	Stale uint64
	// Broken streams were, or will be, opened again.
	Broken uint64
	// Dropped packets and connections found no room.
	Dropped uint64
	// GossipSent and GossipReceived are bytes of UDP; StreamsSent and StreamsReceived of frames.
	GossipSent, GossipReceived, StreamsSent, StreamsReceived uint64

	// Changes of replicas that were sent; Snapshots sent whole; Restored ones taken; NotApplied are messages
	// of changes that met an error, such as a full table; UnknownFeeds were of tables that are not here.
	Changes, Snapshots, Restored, NotApplied, UnknownFeeds uint64
	// CallsLeftOut are calls of the functions of Config that came too fast.
	CallsLeftOut uint64
}

// Stats returns the counters.
func (c *Cluster) Stats() Stats {
	n := &c.count
	return Stats{
		Flows: c.flows.Stats(), Refused: n.refused.Load(), GossipRefused: n.gossipRefused.Load(), Malformed: n.malformed.Load(), Stale: n.stale.Load(),
		Broken: n.broken.Load(), Dropped: c.socks.dropped.Load(), GossipSent: c.socks.sent.Load(), GossipReceived: c.socks.received.Load(),
		StreamsSent: n.streamed.Load(), StreamsReceived: n.received.Load(), Changes: n.changes.Load(), Snapshots: n.snapshots.Load(),
		Restored: n.restored.Load(), NotApplied: n.notApplied.Load(), UnknownFeeds: n.unknownFeeds.Load(), CallsLeftOut: n.callsOut.Load(),
	}
}

// logWriter passes memberlist's log on, and counts what it says of those it refuses: it has no
// counters of its own for that.
type logWriter struct{ c *Cluster }

// Write implements io.Writer; memberlist writes a line at a time.
func (w *logWriter) Write(b []byte) (int, error) {
	line := bytes.TrimSpace(b)
	level := slog.LevelDebug
	for tag, l := range map[string]slog.Level{"[ERR]": slog.LevelWarn, "[WARN]": slog.LevelWarn, "[INFO]": slog.LevelInfo} {
		if bytes.Contains(line, []byte(tag)) {
			level = l
		}
	}
	if level == slog.LevelWarn && isRefusal(line) {
		w.c.count.gossipRefused.Add(1)
	}
	if i := bytes.Index(line, []byte("] ")); i >= 0 {
		line = line[i+2:]
	}
	w.c.log.Log(w.c.running, level, string(line))
	return len(b), nil
}

// isRefusal says whether a line of memberlist's log is about a message that it refused: for its key, label or form; not about a stream that
// only broke.
func isRefusal(line []byte) bool {
	has := func(signs ...string) bool {
		return slices.ContainsFunc(signs, func(s string) bool { return bytes.Contains(line, []byte(s)) })
	}
	return has("ecrypt", "label", "msg type", "msgType", "essage type", "version", "Failed to decode", "failed to receive", "Failed to read remote state", "truncated", "checksum",
		"decompress", "state size") && !has("EOF", "timeout", "reset by peer", "closed")
}

// Package clienttable remembers which server each client session was given, for
// a while.
//
// # The table
//
// A [Table] maps keys to values, each for a limited time. It is bounded: it never
// takes more than Config.MaxEntries entries, and its memory is chosen by New. [Table.Grow]
// gives it more room while it is in use, and [Table.Shrink] less.
// An entry is sliding (each [Table.Load] restarts its idle time, the default) or
// fixed. It is gone when it has been idle for its whole TTL: from that moment on
// no method sees it, though its room is only freed, and Config.OnRemove only told,
// by a later store, by [Table.Sweep] or by [Table.Run]. Times have a resolution of
// one millisecond.
//
// A key type without pointers, padding and floats, such as [Flow], together with
// such a value type is stored packed and outside the Go heap, where the garbage
// collector never looks; any other types take an ordinary heap layout, which
// allocates once per store. Config.Layout can demand the former.
//
// # A full table
//
// A new entry that finds the table full takes the place of an entry that has
// expired, else of one of class [HalfOpen], else of one that is [Lingering]. With
// none of these it is refused with [ErrFull] and counted, or, with [EvictOldest],
// takes the place of the entry used least recently, or one close to it. Entries of
// class [Static] never expire and are never evicted. A search for a victim is
// bounded, so a table with many entries may, for a moment, miss a sole expired
// one.
//
// # Servers that go away
//
// [Table.Invalidate] makes all entries of one owner (Config.Owner names the owner
// of a value: the server) invisible at once, in constant time. Their removal is
// reported by the sweep that follows. Entries stored later for the same owner are
// valid.
//
// # Sessions
//
// [Mode] and [Association] say which entries a session makes, [Ageing] for how
// long, and [TCPState] follows one TCP connection from its packets.
//
// # Concurrency
//
// All methods may be called from any number of goroutines. Look-ups take no lock,
// except for one whose time lies before that of a sweep which is removing expired
// entries from its part of the table at this moment: it waits for that step. A
// method that changes the set of entries locks one of many shards for a bounded
// time. A table starts no goroutine and has no clock of its own: each method has a
// twin with the suffix At that takes the time, and the plain one passes
// time.Now().
//
// # What it does not do
//
// It sends no packets, it chooses no server, and it does not remember that there
// was none: a miss is never stored. It neither grows nor shrinks of itself.
package clienttable

// Package devtest joins two devices in memory, for tests of what runs on them and for
// demonstrations where the kernel offers no device.
//
// What is written to one end of a [Pair] is read from the other. A cable may be bad on purpose:
// it loses, duplicates, delays and reorders packets as [Config] says, the same way for the
// same seed and the same sequence of writes. Time is that of package time, so that all of it works inside
// a testing/synctest bubble.
package devtest

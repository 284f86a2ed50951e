// Package netns makes network namespaces and joins them by virtual Ethernet, for tests and
// demonstrations that need hosts, and needs neither the ip command nor, with [RunAsRoot], root.
//
// A [Namespace] is held by an open file and by operating system threads locked into it, never
// by a name: when it is closed, and at the latest when the process ends in
// whichever way, the kernel removes it with all that is inside.
//
// Other systems than Linux get errors that wrap errors.ErrUnsupported.
package netns

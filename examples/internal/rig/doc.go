// Package rig is what end-to-end tests of the examples share: hosts as network namespaces at the ends of cables, and programs that run in them,
// with logs that can be read meanwhile.
package rig

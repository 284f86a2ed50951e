//go:build !linux

package probe

func (p TCPHalfOpen) talk(*attempt) error { return errNoRaw }

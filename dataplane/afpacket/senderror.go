package afpacket

import "fmt"

// SendError says why the kernel did not take a frame. It wraps the kernel's error.
type SendError struct {
	Interface int   // the index the frame was to leave by
	Err       error // as the kernel says it
}

func (e *SendError) Error() string {
	return fmt.Sprintf("afpacket: write to interface %d: %v", e.Interface, e.Err)
}

// Unwrap returns the kernel's error.
func (e *SendError) Unwrap() error { return e.Err }

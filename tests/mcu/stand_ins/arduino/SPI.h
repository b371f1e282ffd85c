// With Arduino.h.

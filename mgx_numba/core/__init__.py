"""Base vocabulary of all layers: element types, shapes, arguments, and tensor exchange with other libraries."""
